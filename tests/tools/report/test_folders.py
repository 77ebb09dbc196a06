"""Folders and pages that commands write: never those of another request without a word."""

import json

import pytest

from roundscope.tools.errors import StorageError, UsageError
from roundscope.tools.report.html import page as html_of
from roundscope.tools.report.model import Opening, Report
from roundscope.tools.results import folder
from roundscope.tools.results.folder import (
    checked_folder,
    free_folder,
    request_of,
    tell_replaced,
    write_page,
    write_results,
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def titled(title, text=""):
    return html_of(Report(title=title, opening=Opening(text)))


def filled(folder, request, page="report.html"):
    folder.mkdir()
    (folder / "x.json").write_text(json.dumps({"request": request}))
    (folder / page).write_text(titled("x"))


def test_a_folder_is_used_again_for_the_same_request_alone(tmp_path):
    filled(tmp_path / "a", "one")
    assert free_folder("a", "one", "x.json").name == "a"
    assert free_folder("a", "two", "x.json").name == "a-2"
    filled(tmp_path / "a-2", "two")
    assert free_folder("a", "two", "x.json").name == "a-2"
    assert free_folder("a", "three", "x.json").name == "a-3"


def test_what_was_interrupted_goes_on_in_its_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept.sqlite").write_text("")
    assert free_folder("a", "one", "x.json", "kept.sqlite").name == "a"
    assert free_folder("a", "one", "x.json").name == "a-2"


def test_what_was_killed_is_no_other_request(tmp_path):
    """A folder of its own, with -2, for every run after a killed one."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".0123abcd-1.unfinished").write_text("ha")
    assert free_folder("a", "one", "x.json").name == "a"


@pytest.mark.parametrize("name", ["write_json", "write_whole"])
def test_what_was_killed_before_a_file_is_written_again(name, tmp_path, monkeypatch):
    """A page without its record, which looks like that of another command, so that the same command
    is refused for ever.
    """

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, name, killed)
    with pytest.raises(KeyboardInterrupt):
        write_results(tmp_path / "a", "x.json", {"request": "one"}, "page")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    checked_folder(tmp_path / "a", "x.json")
    assert free_folder("a", "one", "x.json").name == "a"
    write_results(tmp_path / "a", "x.json", {"request": "one"}, "page")
    assert (tmp_path / "a" / "report.html").read_text() == "page"


def test_a_damaged_record_is_not_ours(tmp_path):
    (tmp_path / "a").mkdir()
    for text in ("{", "[]", '{"request": null}'):
        (tmp_path / "a" / "x.json").write_text(text)
        assert free_folder("a", "one", "x.json").name == "a-2"


def test_a_page_of_another_command_is_not_replaced(tmp_path):
    filled(tmp_path / "a", "one")
    checked_folder(tmp_path / "a", "x.json")  # its own
    checked_folder(tmp_path / "new", "x.json")
    with pytest.raises(UsageError, match=r"its report\.html is of another command; choose another"):
        checked_folder(tmp_path / "a", "other.json")
    checked_folder(tmp_path / "a", "other.json", "other.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"is a file; name a folder"):
        checked_folder(tmp_path / "file", "x.json")


@pytest.mark.parametrize("name", ["x.json", "report.html"])
def test_of_two_files_none_is_written_where_one_is_a_folder(tmp_path, name):
    """The record of new results beside the page of old ones."""
    filled(tmp_path / "a", "one")
    (tmp_path / "a" / name).unlink()
    (tmp_path / "a" / name).mkdir()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    with pytest.raises(UsageError, match=f"its {name} is a folder or a device"):
        checked_folder(tmp_path / "a", "x.json")
    with pytest.raises(UsageError, match=f"its {name} is a folder or a device"):
        write_results(tmp_path / "a", "x.json", {"request": "two"}, "page")
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir()} == before


def test_results_of_another_request_are_replaced_with_a_word(tmp_path, capsys):
    filled(tmp_path / "a", "one")
    for request in ("one", "two"):
        tell_replaced(tmp_path / "a", request, "x.json")
    tell_replaced(tmp_path / "new", "two", "x.json")
    said = capsys.readouterr().err
    assert said.count("the results of another request, in x.json, are replaced") == 1


def test_a_page_replaces_its_like_and_nothing_else(tmp_path):
    out = tmp_path / "x.html"
    for text in ("1", "2"):
        write_page(out, titled("sweep a", text), "Roundscope: sweep")
        assert text in out.read_text(encoding="utf-8")
    for other in (titled("diagnosis"), "my notes"):
        out.write_text(other, encoding="utf-8")
        with pytest.raises(UsageError, match=r"exists and is another file; name a new one"):
            write_page(out, "", "Roundscope: sweep")
        assert out.read_text(encoding="utf-8") == other
    (tmp_path / "bytes").write_bytes(b"\xff\x00SQLite")
    with pytest.raises(UsageError, match="another file"):
        write_page(tmp_path / "bytes", "", "Roundscope: sweep")
    with pytest.raises(UsageError, match="is a folder; name a file"):
        write_page(tmp_path, "", "Roundscope: sweep")
    with pytest.raises(StorageError, match="see its folder, or choose another file"):
        write_page(tmp_path / "none" / "x.html", "", "Roundscope: sweep")


def test_every_part_of_a_request_counts():
    assert request_of("a", 1) == request_of("a", 1) != request_of("a", "1")
