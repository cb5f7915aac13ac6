// The search box, which finds texts and ids that contain the typed text.

const FOUND_AT_A_TIME = 20;
const TYPING = 150; // milliseconds without a key before the search

class TextFinder {
  #folded = null;
  #timer = 0;

  /** `go` is called with a group, `changed` with the texts that were found, or null if nothing is searched for. */
  constructor(go, changed, tell) {
    this.go = go;
    this.changed = changed;
    this.tell = tell;
    const box = byId("query");
    box.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#find(box.value), TYPING);
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && box.value !== "") {
        box.value = "";
        this.#find("");
        event.preventDefault();
        event.stopPropagation();
      }
      if (event.key === "Enter") {
        clearTimeout(this.#timer);
        this.#find(box.value);
      }
    });
    byId("close-found").addEventListener("click", () => {
      box.value = "";
      this.#find("");
      box.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
      event.preventDefault();
      box.focus();
      box.select();
    });
  }

  /** List the texts that are in no group, which no other list holds. */
  showUngrouped() {
    byId("query").value = "";
    const found = Array.from({ length: textCount }, (_, text) => text).filter((text) => groupOf[text] === -1);
    this.#show(`Texts ${kind.none}`, found, "");
    byId("found-count").textContent = "";
    byId("found-heading").focus();
  }

  #find(typed) {
    const needle = folded(typed).trim();
    if (needle === "") {
      byId("found").hidden = true;
      byId("found-count").textContent = "";
      byId("found-list").replaceChildren();
      this.changed(null);
      return;
    }
    this.#folded ??= texts.map((text, number) => `${folded(text)}\n${folded(ids[number])}`);
    const found = [];
    this.#folded.forEach((text, number) => { if (text.includes(needle)) found.push(number); });
    const words = `${numbers.format(found.length)} of ${counted(textCount, "text", "texts")} found`;
    this.#show(`Texts with “${label(typed)}”`, found, needle);
    byId("found-count").textContent = words;
    this.tell(`${words}.`);
  }

  #show(heading, found, needle) {
    byId("found").hidden = false;
    byId("found-heading").textContent = heading;
    growingList(byId("found-list"), byId("more-found"), {
      items: found,
      size: FOUND_AT_A_TIME,
      unit: ["text", "texts"],
      render: (text) => this.#item(text, needle),
      tell: (shown, there) => {
        byId("found-note").textContent = there === 0 ? "No text or id contains this." : `${numbers.format(shown)} of ${counted(there, "text", "texts")} shown.`;
      },
    });
    this.changed(found);
  }

  #item(text, needle) {
    const group = groupOf[text];
    return element(
      "li",
      {},
      textOf(text, needle === "" ? [] : occurrences(texts[text], needle)),
      element("p", { class: "facts" }, idOf(text), group === -1 ? element("span", {}, kind.none) : groupButton(group, this.go)),
    );
  }
}
