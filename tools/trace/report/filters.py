"""The filters of a trace's page: a layer, a head. The page is whole without its script."""

from html import escape

SCRIPT = """<script>
(() => {
  const asked = () => new URLSearchParams(location.hash.slice(1));
  const bars = document.querySelector(".filters");
  if (!bars) return;
  bars.hidden = false;
  const [layer, head] = ["layer", "head"].map((name) => bars.querySelector(`[name=${name}]`));
  const show = () => {
    const words = asked();
    if (layer) layer.value = words.get("layer") ?? "";
    head.value = words.get("head") ?? "";
    for (const part of document.querySelectorAll("section[data-layer]"))
      part.hidden = Boolean(layer && layer.value) && part.dataset.layer !== layer.value;
    for (const row of document.querySelectorAll(".heads tr"))
      row.hidden = head.value !== "" && row.cells[0].tagName === "TD"
        && row.cells[0].textContent !== head.value;
    if (head.value !== "")
      for (const table of document.querySelectorAll(".heads")) table.closest("details").open = true;
  };
  const tell = () => {
    const words = new URLSearchParams();
    if (layer && layer.value) words.set("layer", layer.value);
    if (head.value !== "") words.set("head", head.value);
    history.replaceState(null, "", `#${words}`);
    show();
  };
  for (const field of [layer, head]) if (field) field.addEventListener("input", tell);
  addEventListener("hashchange", show);
  if (/^#(layer|head)=/.test(location.hash)) show();
})();
</script>"""


def controls(layers: list[str], heads: int) -> str:
    """Return the fields that choose a layer, if there are several, and a head.

    They are hidden where no script runs. What is chosen stands in the page's address, as
    #layer=NAME&head=3.
    """
    names = "".join(f"<option value='{escape(x, quote=True)}'>{escape(x)}</option>" for x in layers)
    choice = (
        f"<label>Layer <select name=layer><option value=''>all</option>{names}</select></label> "
        if len(layers) > 1
        else ""
    )
    head = (
        f"<label>Head <input name=head type=number min=0 max={heads - 1} placeholder=all"
        " style='width:5em'></label>"
    )
    return f"<p class='filters note' hidden>{choice}{head}</p>"
