"""Progress that does not lie: what compiles is no step's time, the rest of the command counts, a
log file gets a line a minute.
"""

from roundscope.tools.report.progress import Pace, bar, left


def test_the_first_step_is_not_in_the_rate():
    """Nine minutes left of a run that ends in 18 seconds: compilation counted as a step's time, for
    as long as it is the longest part.
    """
    seconds = iter([300.0, 301.0, 302.0, *range(303, 400)])
    pace = Pace(lambda: next(seconds))
    assert pace.rate == 0.0
    for step in (1, 11, 21):
        pace.mark(step)
    assert pace.rate == 10.0
    for step in range(26, 76, 5):  # slower of late
        pace.mark(step)
    assert pace.rate == 5.0


def test_time_left_is_the_command_s(capsys):
    """The time of this launch alone; a line for every step, or none in an hour, where stderr is no
    terminal.
    """
    now = [0.0]
    with bar("launch 1 of 3", 100, rest=200, clock=lambda: now[0]) as step:
        for done in (10, 20, 30, 40, 50):
            now[0] += 40.0  # 30 s of compilation would be in the first
            step(done)
    assert (
        capsys.readouterr().err
        == "launch 1 of 3: 20 of 100, 0:18:40 left\nlaunch 1 of 3: 40 of 100, 0:17:20 left\n"
    )
    assert left(10, 0.0) == "" and left(3661, 1.0) == "1:01:01 left"
