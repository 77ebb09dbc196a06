"""What the page of a trace explains: how to read it, the tests of bias, what is exact."""

HOW = """<p><b>Results.</b> <i>Relative rms error</i>: the size of the difference from exact
attention (binary64 throughout), over the size of the exact result. <i>Too long or too short</i>
(the gain): the difference along the exact result, as a part of its length; noise leaves about 0,
and a rounding that is biased does not. <i>z</i> is the gain over its standard error, from the
scatter of heads. <i>Rounded once</i>: the error that remains if everything but the last rounding
is exact, which no result in this format can beat.</p>
<p><b>Error budget.</b> A rounding event is one operation and one rounding, with a name. Each event
is run alone, with all else in binary64; its share is its squared error over that of the whole
plan, since independent errors add in squares. Then it is taken away alone: the error that is left
says what more bits for this event would buy. Sums on tensor cores read narrow operands only, and
injected errors are in ulps of the plan's formats, so for these the share is the change when they
are taken away. <i>Interaction</i> is what the shares do not add up to: above 0 errors point the
same way, below 0 they cancel. A result with an infinite or NaN number has an infinite error and no
shares: <i>inf</i> marks the events that alone make it so.</p>
<p><b>Events.</b> Errors are in ulps, units in the last place of the event's format. ▲ ▼ mark events
that are biased up or down.</p>"""

NULL = """The null hypothesis: flip the signs of all errors of a row together, by a fair coin per
row. Then z = &Sigma;<sub>r</sub> s<sub>r</sub> / &radic;(&Sigma;<sub>r</sub>
s<sub>r</sub>&sup2;), with s<sub>r</sub> the row's sum of signed errors in ulps. Errors inside a row
may depend on each other in any way. Events whose |z| exceeds the threshold are tested once more
with one coin per distinct argument (its signed significand; of LSE, equal errors), since equal
arguments round alike in every row; the larger variance counts. &plusmn; is one standard error.
Thresholds are set so that without any bias each table or picture marks something once in a hundred
times."""

EXACT = """<b>What is exact.</b> Every event is rounded exactly, from binary64, once. The counts of
inexact events, ties, carries and overflows are exact, and so are the errors of single events (the
difference of two neighboring numbers needs no rounding). The results have the same bits on every
engine for plans without native accumulators. <b>What is not exact.</b> Sums of errors, means and
deviations are binary64 sums. <code>exp</code> and <code>log</code> enter an event in binary64,
within 1 ulp of binary64, and exp rounds correctly to binary32 and narrower. The reference plan
<code>exact</code> is binary64 throughout, not infinite precision. z and its threshold are
statistics of these tensors; they say nothing of other inputs."""
