"""Write what is made from the code into the pages that have it: `make reference`."""

from .pages import DOCS, parts, renewed

if __name__ == "__main__":
    for page in sorted({page for page, _ in parts()}):
        old = page.read_text(encoding="utf-8")
        new = renewed(old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"written: docs/{page.relative_to(DOCS)}")
