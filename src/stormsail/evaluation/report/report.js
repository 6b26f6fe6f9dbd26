"use strict";
// What our pages do in a browser: colours, charts, long tables, paper. Nothing is ever loaded, and
// texts from data reach the page as textContent or as data of plotly.js, never as HTML.
(() => {
  const root = document.documentElement;
  const PAPER_WIDTH = 680; // pixels between the margins of an A4 sheet, with a little to spare
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

  // ---- colours -------------------------------------------------------------------------------
  const channels = (hex) => {
    const full = hex.length === 4 ? [...hex.slice(1)].map((one) => one + one).join("") : hex.slice(1);
    return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
  };
  const palette = () => {
    const style = getComputedStyle(root);
    const known = new Map();
    return (token) => {
      if (!known.has(token)) {
        const [name, cover] = token.slice(1).split("/");
        const hex = style.getPropertyValue(`--${name}`).trim();
        known.set(token, cover ? `rgba(${channels(hex).join(",")},${cover})` : hex);
      }
      return known.get(token);
    };
  };
  const coloured = (value, colour) => {
    if (typeof value === "string") return /^@[a-z0-9-]+(\/[0-9.]+)?$/.test(value) ? colour(value) : value;
    if (Array.isArray(value)) return value.map((one) => coloured(one, colour));
    if (value !== null && typeof value === "object") {
      if ("bdata" in value) return value;
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, colour)]));
    }
    return value;
  };

  // ---- charts --------------------------------------------------------------------------------
  const axis = (given, colour, narrow) => ({
    gridcolor: colour("@grid"), linecolor: colour("@line"), zerolinecolor: colour("@line"),
    automargin: true, tickfont: { size: narrow ? 10 : 11.5, color: colour("@muted") },
    ...(given.type === "category" ? { dtick: 1 } : narrow ? { nticks: 5 } : {}), ...given,
    title: { ...(given.title || {}), standoff: 6,
      font: { size: narrow ? 10.5 : 12, color: colour("@muted") } },
  });
  const dressed = (layout, colour, narrow) => {
    const own = coloured(layout, colour);
    for (const key of Object.keys(own)) {
      if (/^[xy]axis\d*$/.test(key)) own[key] = axis(own[key], colour, narrow);
    }
    return {
      hovermode: "x unified", bargap: 0.04, dragmode: narrow ? false : "zoom", ...own,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12.5, color: colour("@ink") },
      margin: { l: 8, r: 8, t: 12, b: 8, pad: 2, ...(own.margin || {}) },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.01, yanchor: "bottom",
        font: { size: narrow ? 10.5 : 12 }, bgcolor: "rgba(0,0,0,0)", ...(own.legend || {}) },
      hoverlabel: { bgcolor: colour("@card"), bordercolor: colour("@line"),
        font: { size: narrow ? 10.5 : 12, color: colour("@ink") } },
    };
  };
  const draw = (one) => {
    const width = printing ? PAPER_WIDTH : one.place.clientWidth;
    if (!width) return Promise.resolve(); // inside a closed part: drawn when that opens
    const colour = palette();
    const narrow = width < NARROW;
    const layout = dressed(one.figure.layout || {}, colour, narrow);
    // on a narrow page a long legend takes several lines, which the chart must not pay for
    const entries = one.figure.data.filter((each) => each.showlegend !== false).length;
    const height = one.height + (narrow ? 18 * Math.max(0, Math.ceil(entries / 2) - 1) : 0);
    one.place.style.height = `${height}px`;
    Object.assign(layout, { width, height, autosize: false });
    const data = coloured(one.figure.data, colour);
    const config = { displaylogo: false, displayModeBar: false, scrollZoom: false };
    one.width = width;
    return Plotly.react(one.place, data, layout, config);
  };
  const findCharts = () => {
    for (const place of document.querySelectorAll(".chart")) {
      const source = place.querySelector('script[data-role="figure"]');
      const figure = JSON.parse(source.textContent);
      source.remove();
      charts.push({ place, figure, height: place.clientHeight || parseInt(place.style.height, 10), width: 0 });
    }
  };
  const drawAll = async () => {
    for (const one of charts) {
      await draw(one);
      await new Promise((done) => setTimeout(done, 0)); // let the page scroll in between
    }
    root.dataset.ready = "yes";
  };
  const redrawMoved = () => {
    if (printing) return;
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
        charts.forEach(draw);
      });
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
  };

  // ---- long tables ---------------------------------------------------------------------------
  const SHORT_PAGE = 25;
  const PAPER_ROWS = 200;
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
    for (const part of document.querySelectorAll("details:not([open])")) {
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
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", fromPaper);
  drawAll();
})();
