"""What the HTML reports share: each is one file that opens anywhere, without scripts.

A page opens with `verdict`, goes on with `folded` words on how to read it and with pictures, and
ends with `folded` details. It is light or dark as the reader's system is, and fits narrow screens.
"""

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from roundscope.tools.report import pictures

LONG = 36  # number of characters beyond which a cell may take several lines
LEAD = 160  # number of characters that fit in large letters
_SENTENCE = re.compile(r"(?<=[a-z0-9)\]][.?!]) (?=\w)")  # where a sentence ends
SECTIONS = 5  # sections from which on a page has a table of contents
CONTENTS = "<nav></nav>"  # where a page has its table of contents, if it gets one
CSS = """
:root{color-scheme:light dark;--ink:#1f2933;--paper:#fff;--muted:#52606d;--line:#cbd2d9;
--stripe:#f4f6f8;--bad:#b2182b;--good:#00704e;--warn:#8a5a00;--accent:#1d5fa8}
@media screen and (prefers-color-scheme:dark){
:root{--ink:#dde3e9;--paper:#14171a;--muted:#9aa5b1;--line:#3b444d;--stripe:#1d2226;
--bad:#ff8585;--good:#4fc99a;--warn:#e5b454;--accent:#7db8f0}
figure svg,figure img{filter:invert(.92) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1000px;padding:28px 20px 64px;background:var(--paper);
color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;
overflow-wrap:break-word;-webkit-text-size-adjust:100%}
h1{font-size:26px;line-height:1.25;margin:0 0 6px}
h2{font-size:20px;line-height:1.3;margin:44px 0 8px;border-top:1px solid var(--line);
padding-top:16px}
h3{font-size:16px;margin:28px 0 6px}
p{margin:8px 0}li{margin:3px 0}a{color:var(--accent)}
p.lead{font-size:19px;line-height:1.45;margin:0 0 6px}
p.sub,figcaption,.note{color:var(--muted);font-size:14px}
.verdict{border-left:5px solid var(--accent);padding:10px 16px;margin:16px 0 20px;
background:var(--stripe)}
.verdict.good{border-color:var(--good)}.verdict.bad{border-color:var(--bad)}
.verdict p{margin:4px 0}.verdict .number{font-weight:600}
.next code{display:block;user-select:all;margin:4px 0 2px;padding:7px 10px;
background:var(--paper);border:1px solid var(--line);border-radius:4px;white-space:pre-wrap;
overflow-wrap:anywhere}
code,pre,table{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{font-size:.88em}
figure{margin:8px 0 26px}figure svg,figure img{display:block;width:100%;height:auto}
figcaption{margin-top:6px}
.wide{overflow-x:auto;margin:10px min(0px,calc(520px - 50vw)) 10px 0}
table{border-collapse:collapse;font-size:12.5px;line-height:1.45}
th{text-align:right;border-bottom:1px solid var(--ink);padding:3px 8px;font-weight:600;
vertical-align:bottom}
td{text-align:right;padding:2px 8px;white-space:nowrap;vertical-align:top}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
th.text{text-align:left}td.text{white-space:normal;min-width:16em;text-align:left}
table.words{min-width:680px}table.words th,table.words td{text-align:left;white-space:normal}
tr:nth-child(even) td{background:var(--stripe)}
tr.lean td{color:var(--bad)}tr.lean td:first-child{font-weight:700}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.muted{color:var(--muted)}
.verdict.good,.verdict.bad{color:inherit}
pre{font-size:12.5px;line-height:1.45;white-space:pre-wrap;overflow-wrap:anywhere;
background:var(--stripe);padding:10px 12px;border-radius:4px;margin:8px 0}
details{margin:10px 0}summary{cursor:pointer;color:var(--accent)}
nav ul{list-style:none;padding:0;margin:6px 0;font-size:14px;columns:2 280px}
@media (max-width:560px){body{padding:16px 12px 48px}h1{font-size:22px}p.lead{font-size:17px}}
@media print{.wide{overflow:visible;margin-right:0}td{white-space:normal}
body{max-width:none;padding:0}figure,tr{break-inside:avoid}.verdict{border:1px solid var(--line)}}
"""


def document(title: str, body: str) -> str:
    """Return the whole page as HTML; `title` is text, `body` is HTML.

    The sections of `body` can be linked to. If it has many, a table of contents stands where it
    has `CONTENTS`.
    """
    head = (
        "<meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{CSS}</style>"
    )
    return f"<!doctype html>\n<html lang=en>{head}\n<body>{_with_contents(body)}</body></html>\n"


def _with_contents(body: str) -> str:
    titles: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        word = re.sub(r"<[^>]*>|&[^;]*;", "", match[1]).lower()
        name = re.sub(r"[^a-z0-9]+", "-", word).strip("-") or "section"
        name = name if name not in titles else f"{name}-{len(titles)}"
        titles[name] = match[1]
        return f"<h2 id={name}>{match[1]}</h2>"

    body = re.sub(r"<h2>(.*?)</h2>", named, body, flags=re.DOTALL)
    links = "".join(f"<li><a href=#{name}>{title}</a>" for name, title in titles.items())
    is_long = len(titles) >= SECTIONS
    return body.replace(CONTENTS, f"<nav><ul>{links}</ul></nav>" if is_long else "")


def verdict(
    text: str, number: str = "", next_step: str = "", *, why: str = "Next", mood: str = ""
) -> str:
    """Return the opening of a page, as HTML.

    Args:
        text: The answer, in a sentence that nobody can misread; of a long text, the first
            sentence is in large letters.
        number: The number behind it, in words: "relative rms error 2.3e-3".
        next_step: The command of the next step; one click marks all of it.
        why: What the command is for.
        mood: "good" or "bad" for an answer that is, and "" for one that is neither.
    """
    number = f"<p class=number>{escape(number)}</p>" if number else ""
    step = f"<p class=next>{escape(why)}: {command(next_step)}</p>" if next_step else ""
    first, *rest = _SENTENCE.split(text, maxsplit=1) if len(text) > LEAD else (text,)
    lead = f"<p class=lead>{escape(first)}</p>" + "".join(f"<p>{escape(x)}</p>" for x in rest)
    return f"<div class='verdict {mood}'>{lead}{number}{step}</div>"


def command(line: str) -> str:
    """Return a command that can be copied: a click marks all of it."""
    return f"<code>{escape(line)}</code>"


def folded(title: str, html: str) -> str:
    """Return `html` under a title that opens it; `title` is text."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def figure(title: str, picture: Any, caption: str) -> str:
    """Return a title, its picture (a matplotlib Figure, or None) and its caption, as HTML."""
    image = "" if picture is None else pictures.svg(picture, title)
    caption = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<h3>{escape(title)}</h3><figure>{image}{caption}</figure>"


def grid(
    heads: Iterable[str], rows: Iterable[Iterable[str]], marked: list[bool] | None = None
) -> str:
    """Return a table as HTML.

    heads: texts, in which newlines are kept; marked: for each row, whether it is drawn in red.
    Long cells may break into lines, so that no column is cut off.
    """
    heads, lines = list(heads), [list(row) for row in rows]
    wide = [any(len(row[i]) > LONG for row in lines) for i in range(len(heads))]
    head = "".join(
        f"<th{' class=text' * is_wide}>{escape(h).replace(chr(10), '<br>')}"
        for h, is_wide in zip(heads, wide, strict=True)
    )
    body = ""
    for i, row in enumerate(lines):
        cells = "".join(
            f"<td{' class=text' * is_wide}>{escape(c)}"
            for c, is_wide in zip(row, wide, strict=True)
        )
        body += f"<tr{' class=lean' if marked and marked[i] else ''}>{cells}"
    return f"<div class=wide><table><tr>{head}{body}</table></div>"
