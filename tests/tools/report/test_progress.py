"""Progress that does not lie: what compiles is no step's time, the rest of the command counts, a
log file gets a line a minute.
"""

from roundscope.tools.report.progress import SELDOM, Counted, Pace, bar, left, shares


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


def test_parts_are_counted_and_the_time_left_is_that_of_the_parts(capsys):
    """Twenty layers of which one sees the name alone; a time left before anything is known; a
    single part that is called 1 of 1.
    """
    now = [0.0]
    counted = Counted(20, lambda: now[0])
    assert counted("h0") == "1 of 20, h0"
    for _ in range(5):
        counted.next()
    now[0] = 50.0
    assert counted("h5") == "6 of 20, h5, 0:02:30 left"
    for _ in range(15):
        counted.next()
    assert counted("page") == "20 of 20, page"
    assert Counted(1)("h0") == "h0"


def test_shares_of_a_work_are_lines_where_stderr_is_no_terminal(capsys):
    """Four minutes without a line in a log file."""
    now = [0.0]
    with shares("bench round", clock=lambda: now[0]) as part:
        step = part("rounding")
        for _ in range(10):
            now[0] += SELDOM / 2
            step(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 and lines[0].startswith("bench round: rounding, 20 %")
    assert lines[0].endswith("0:01:00 left") and "100 %" in lines[-1]
