"use strict";
// What our pages do in a browser: colours, charts, long tables, paper. Nothing is ever loaded, and
// texts from data reach the page as textContent, never as HTML.
(() => {
  const root = document.documentElement;
  const PAPER_WIDTH = 680; // pixels between the margins of an A4 sheet, with a little to spare
  const PAPER_SHARE = 0.6; // of a chart's height
  const NARROW = 620;
  const CHOICES = ["auto", "light", "dark"];
  const charts = [];
  const tables = [];
  let printing = false;

  const stored = () => {
    try { return localStorage.getItem("stormsail-colours"); } catch { return null; }
  };
  const store = (choice) => {
    try { localStorage.setItem("stormsail-colours", choice); } catch { /* private windows */ }
  };

  // ---- charts --------------------------------------------------------------------------------
  const draw = (one) => {
    const half = one.place.closest(".pair, .cards") !== null; // on paper two of them share the width
    const width = printing ? (half ? PAPER_WIDTH / 2 - 8 : PAPER_WIDTH) : one.place.clientWidth;
    if (!width) return; // inside a closed part: drawn when that opens
    // on a narrow page a long legend takes several lines, which the chart must not pay for
    const entries = one.state.traces.filter((each) => each.showlegend !== false).length;
    const height = (printing ? PAPER_SHARE : 1) * one.height + (width < NARROW ? 18 * Math.max(0, Math.ceil(entries / 2) - 1) : 0);
    one.place.style.height = `${height}px`;
    one.width = width;
    Charts.draw(one.place, one.state, { width, height, name: one.place.getAttribute("aria-label") });
  };
  const findCharts = () => {
    for (const place of document.querySelectorAll(".chart")) {
      const source = place.querySelector('script[data-role="figure"]');
      const figure = JSON.parse(source.textContent);
      source.remove();
      charts.push({ place, state: Charts.read(figure), height: parseInt(place.style.height, 10), width: 0 });
    }
  };
  const drawAll = async () => {
    for (const one of charts) {
      draw(one);
      await new Promise((done) => setTimeout(done, 0)); // let the page scroll in between
    }
    root.dataset.ready = "yes";
  };
  const reachTables = () => {
    // what scrolls sideways must be reached by the keyboard
    for (const part of document.querySelectorAll(".scroll")) {
      if (part.scrollWidth > part.clientWidth + 1) part.tabIndex = 0;
      else part.removeAttribute("tabindex");
    }
  };
  const redrawMoved = () => {
    if (printing) return;
    reachTables();
    for (const one of charts) if (one.place.clientWidth !== one.width) draw(one);
  };

  // ---- light and dark ------------------------------------------------------------------------
  const choose = (choice) => {
    if (choice === "auto") delete root.dataset.theme;
    else root.dataset.theme = choice;
    const button = document.getElementById("theme");
    if (button) button.textContent = `colours: ${choice}`;
  };
  const startColours = () => {
    let choice = CHOICES.includes(stored()) ? stored() : "auto";
    choose(choice);
    const button = document.getElementById("theme");
    if (button) {
      button.addEventListener("click", () => {
        choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
        store(choice);
        choose(choice);
      });
    }
  };

  // ---- long tables ---------------------------------------------------------------------------
  const SHORT_PAGE = 25;
  const PAPER_ROWS = 10;
  const element = (name, text, classes) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (classes) made.className = classes;
    return made;
  };
  const written = (value, kind) => {
    if (value === null) return "–";
    if (kind === "time") return new Date(value).toISOString().slice(0, 16).replace("T", " ");
    if (kind === "number") return Number(value.toPrecision(7)).toLocaleString("en", { maximumSignificantDigits: 7 });
    return String(value);
  };
  class LongTable {
    constructor(place) {
      const source = place.querySelector('script[data-role="rows"]');
      const { columns, rows } = JSON.parse(source.textContent);
      Object.assign(this, { place, columns, rows, shown: rows, at: 0, size: SHORT_PAGE, by: null, down: false });
      this.texts = rows.map((row) => row.map((one, at) => written(one, columns[at].kind).toLowerCase()));
      this.filter = element("input", undefined, "grow");
      Object.assign(this.filter, { type: "search", placeholder: "filter: any words, all must occur" });
      this.filter.setAttribute("aria-label", "filter rows");
      this.filter.addEventListener("input", () => this.select());
      this.picks = columns.map((column, at) => this.pick(column, at));
      this.back = element("button", "‹ back");
      this.next = element("button", "next ›");
      this.back.addEventListener("click", () => this.turn(-1));
      this.next.addEventListener("click", () => this.turn(1));
      this.count = element("span", "", "count");
      this.count.setAttribute("aria-live", "polite");
      const controls = element("div", undefined, "controls");
      controls.append(this.filter, ...this.picks.filter(Boolean));
      const leaf = element("div", undefined, "controls");
      leaf.append(this.back, this.next, this.count);
      const scroll = element("div", undefined, "scroll");
      const made = element("table");
      this.head = this.heading(made.createTHead().insertRow());
      this.body = made.createTBody();
      scroll.append(made);
      place.replaceChildren(controls, scroll, leaf);
      this.show();
    }
    pick(column, at) {
      const values = [...new Set(this.rows.map((row) => row[at]))].sort();
      if (column.kind !== "text" || values.length < 2 || values.length > 40) return null;
      const made = element("select");
      made.setAttribute("aria-label", column.title);
      made.append(new Option(`${column.title}: all`, ""));
      values.forEach((value, place) => made.append(new Option(String(value), String(place + 1))));
      made.addEventListener("change", () => this.select());
      made.values = values;
      return made;
    }
    heading(row) {
      return this.columns.map((column, at) => {
        const cell = element("th", undefined, column.kind === "number" ? "" : "left");
        const button = element("button", column.title);
        button.type = "button";
        button.addEventListener("click", () => this.sort(at));
        cell.scope = "col";
        cell.append(button);
        row.append(cell);
        return cell;
      });
    }
    select() {
      const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = this.picks.map((pick) => (pick && pick.value ? [pick.values[Number(pick.value) - 1]] : null));
      this.shown = this.rows.filter((row, place) =>
        wanted.every((one, at) => one === null || row[at] === one[0]) &&
        words.every((word) => this.texts[place].some((text) => text.includes(word))));
      this.order();
      this.at = 0;
      this.show();
    }
    sort(at) {
      this.down = this.by === at ? !this.down : false;
      this.by = at;
      this.order();
      this.at = 0;
      this.show();
    }
    order() {
      if (this.by === null) return;
      const sign = this.down ? -1 : 1;
      const at = this.by;
      const rank = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : (a < b ? -1 : 1) * sign);
      this.shown = [...this.shown].sort((a, b) => rank(a[at], b[at]));
      this.head.forEach((cell, place) => {
        if (place === at) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
        cell.firstChild.textContent = this.columns[place].title + (place === at ? (this.down ? " ↓" : " ↑") : "");
      });
    }
    turn(by) {
      this.at += by * this.size;
      this.show();
    }
    show() {
      const end = Math.min(this.at + this.size, this.shown.length);
      this.body.replaceChildren(...this.shown.slice(this.at, end).map((row) => {
        const line = element("tr");
        line.append(...row.map((one, at) =>
          element("td", written(one, this.columns[at].kind), this.columns[at].kind === "number" ? "" : "left")));
        return line;
      }));
      const of = this.shown.length === this.rows.length ? "" : ` (of ${this.rows.length})`;
      this.count.textContent = this.shown.length
        ? `${this.at + 1}–${end} of ${this.shown.length}${of}` : `no row fits${of}`;
      this.back.disabled = this.at === 0;
      this.next.disabled = end >= this.shown.length;
    }
    resize(size) {
      this.size = size;
      this.at = Math.floor(this.at / size) * size;
      this.show();
    }
  }

  // ---- paper ---------------------------------------------------------------------------------
  const closed = [];
  let before = "auto";
  const toPaper = () => {
    printing = true;
    before = root.dataset.theme || "auto";
    root.dataset.theme = "light";
    for (const part of document.querySelectorAll("details:not([open]):not(.screen)")) {
      closed.push(part);
      part.open = true;
    }
    tables.forEach((one) => one.resize(PAPER_ROWS));
    charts.forEach(draw);
  };
  const fromPaper = () => {
    printing = false;
    choose(before);
    closed.splice(0).forEach((part) => { part.open = false; });
    tables.forEach((one) => one.resize(SHORT_PAGE));
    charts.forEach(draw);
  };

  startColours();
  for (const place of document.querySelectorAll(".data-table")) tables.push(new LongTable(place));
  findCharts();
  document.addEventListener("toggle", redrawMoved, true);
  addEventListener("resize", redrawMoved);
  reachTables();
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", fromPaper);
  drawAll();
})();
