"""Homes and users of containers: a slice of `make containers`, and that it finds every fault."""

from dataclasses import replace

from tests.checks import container

GOOD = container.Ran(0, "", "numbers")


def test_a_home_in_which_no_folder_can_be_made():
    """A Python call that needs a home, which a read-only image or an unknown user has not."""
    states = (container.no_folder, *((container.no_home,) if container.is_root() else ()))
    counts = container.check(states, ("round",))
    assert counts["faulty"] == 0 and counts["clean"] >= 2


def test_every_fault_is_found():
    """A check that passes whatever a run does."""
    assert container.faults(GOOD, "numbers", noted=False) == []
    for bad, words in (
        (replace(GOOD, code=139), "exit code 139"),
        (replace(GOOD, errors="Traceback (most"), "a traceback"),
        (replace(GOOD, numbers="others"), "other numbers"),
        (replace(GOOD, errors="nothing is kept on disk"), "1 notes in place of False"),
        (replace(GOOD, left=["roundscope-x"]), "left"),
    ):
        (found,) = container.faults(bad, "numbers", noted=False)
        assert words in found
    twice = replace(GOOD, errors="nothing is kept on disk\n" * 2)
    assert container.faults(twice, "numbers", noted=None) == ["2 notes in place of None"]
    assert container.faults(GOOD, "numbers", noted=None) == []
    assert container.faults(GOOD, "numbers", noted=True) == ["0 notes in place of True"]
