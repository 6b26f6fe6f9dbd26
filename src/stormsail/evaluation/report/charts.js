"use strict";
// Draws the figures of our pages as SVG: lines, areas, steps, bars, markers, error bars, one or two
// charts over one axis. A figure is plain data in the form that `charts.py` describes. Colours are
// the page's own (`@c1/0.2` is `--c1`, a fifth of it), so that light and dark need no new drawing.
// Texts of others reach the page as textContent alone.
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const NARROW = 620;
  const DASHES = { solid: "", dot: "1.5 3", dash: "6 4", longdash: "10 5", dashdot: "6 3 1.5 3" };
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const DAY = 86400000;
  let count = 0;

  const svg = (parent, name, attributes = {}, text) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== "") made.setAttribute(key, value);
    }
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const html = (parent, name, classes, text) => {
    const made = document.createElement(name);
    made.className = classes;
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const paint = (made, property, token) => {
    if (!token) return made;
    const [name, cover] = token.slice(1).split("/");
    made.style[property] = `var(--${name})`;
    if (cover) made.style[`${property}Opacity`] = cover;
    return made;
  };

  // ---- numbers -------------------------------------------------------------------------------
  const unpacked = (value) => {
    if (value === null || typeof value !== "object" || !("bdata" in value)) return value;
    const bytes = Uint8Array.from(atob(value.bdata), (sign) => sign.charCodeAt(0));
    return Array.from(value.dtype === "f4" ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer));
  };
  const shown = (value, form) => {
    // the part of d3's formats that our figures use: sign, comma, digits, ~ cuts zeros, % g f
    const [, sign, comma, digits, trim, kind] = /^(\+?)(,?)(?:\.(\d+))?(~?)([%gf]?)$/.exec(form || "") || [];
    const scaled = kind === "%" ? 100 * value : value;
    const places = digits === undefined ? 4 : Number(digits);
    let text;
    if (kind === "g" || !kind) text = Number(scaled.toPrecision(places || 4)).toLocaleString("en", { maximumSignificantDigits: places || 4, useGrouping: Boolean(comma) });
    else text = scaled.toLocaleString("en", { minimumFractionDigits: trim ? 0 : places, maximumFractionDigits: places, useGrouping: Boolean(comma) || Math.abs(scaled) >= 1e4 });
    return (sign && scaled > 0 ? "+" : "") + text.replace("-", "−") + (kind === "%" ? "%" : "");
  };
  const moment = (ms, short) => {
    const time = new Date(ms);
    const day = `${time.getUTCDate()} ${MONTHS[time.getUTCMonth()]}`;
    const clock = time.toISOString().slice(11, 16);
    if (short === "hour") return clock === "00:00" ? day : clock;
    if (short === "day") return day;
    if (short === "month") return time.getUTCMonth() ? MONTHS[time.getUTCMonth()] : String(time.getUTCFullYear());
    return `${day} ${time.getUTCFullYear()} ${clock}`;
  };
  const niceTicks = (low, high, most) => {
    const raw = (high - low) / Math.max(1, most);
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= raw * 0.999) || 10);
    return spaced(low, high, step);
  };
  const spaced = (low, high, step) => {
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) ticks.push(Math.round(k * step * 1e12) / 1e12 || 0);
    return ticks;
  };
  const dateTicks = (low, high, most) => {
    const raw = (high - low) / Math.max(1, most);
    const hours = [1, 3, 6, 12].map((each) => each * 3600000).find((each) => each >= raw);
    if (hours) return [spaced(low, high, hours), "hour"];
    const days = [1, 2, 7, 14].map((each) => each * DAY).find((each) => each >= raw);
    if (days) return [spaced(low, high, days), "day"];
    const months = [1, 2, 3, 6, 12, 24, 60].find((each) => each * 30.4 * DAY >= raw) || 120;
    const ticks = [];
    for (let year = new Date(low).getUTCFullYear(), month = 0; Date.UTC(year, month) <= high; month += months) {
      if (Date.UTC(year, month) >= low) ticks.push(Date.UTC(year, month));
    }
    return [ticks, "month"];
  };

  // ---- figures -------------------------------------------------------------------------------
  const read = (figure) => {
    const traces = figure.data.map((given, at) => {
      const bars = given.error_y ? { above: unpacked(given.error_y.array), below: unpacked(given.error_y.arrayminus) } : null;
      const group = given.legendgroup || `trace ${at}`;
      return { ...given, x: unpacked(given.x), y: unpacked(given.y), widths: unpacked(given.width), bars, group, panel: given.yaxis === "y2" ? 1 : 0 };
    });
    const hidden = new Set(traces.filter((one) => one.visible === "legendonly").map((one) => one.group));
    return { traces, layout: figure.layout || {}, hidden, range: null };
  };
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const sideways = (one) => one.type === "bar" && one.orientation === "h";

  const scale = (axis, values, from, to, reach) => {
    const texts = axis.type === "category" || values.some((value) => typeof value === "string");
    if (texts) {
      const names = [...new Set(values.map(String))];
      const step = (to - from) / Math.max(1, names.length);
      const place = (value) => from + step * (names.indexOf(String(value)) + 0.5);
      return { names, step: Math.abs(step), at: place, ticks: () => names, label: String, low: 0, high: names.length };
    }
    const log = axis.type === "log";
    const turn = log ? Math.log10 : (value) => value;
    const known = values.filter((value) => isNumber(value) && (!log || value > 0)).map(turn);
    let [low, high] = reach || axis.range || [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
    if (!Number.isFinite(low)) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - (Math.abs(low) * 0.05 || 0.5), high + (Math.abs(high) * 0.05 || 0.5)];
    const at = (value) => from + (to - from) * (turn(value) - low) / (high - low);
    const back = (pixel) => low + (high - low) * (pixel - from) / (to - from);
    let kind = "";
    const ticks = (most) => {
      if (axis.type === "date") { const [own, unit] = dateTicks(low, high, most); kind = unit; return own; }
      if (log) {
        const own = [];
        for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) for (const lead of [1, 2, 5]) own.push(lead * 10 ** power);
        const inside = own.filter((value) => turn(value) >= low - 1e-9 && turn(value) <= high + 1e-9);
        return inside.length > 2 * most ? inside.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : inside;
      }
      return axis.dtick ? spaced(low, high, axis.dtick) : niceTicks(low, high, most);
    };
    const label = (value) => axis.type === "date" ? moment(value, kind) : log && !axis.tickformat ? value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 }) : shown(value, axis.tickformat || ",.6~g");
    return { at, back, ticks, label, low, high };
  };

  const heights = (one) => {
    const numbers = one.y.filter(isNumber);
    if (one.bars) one.y.forEach((value, k) => { if (isNumber(value)) numbers.push(value + one.bars.above[k], value - one.bars.below[k]); });
    if (one.type === "bar" || one.fill === "tozeroy") numbers.push(0);
    return numbers;
  };
  const reachOf = (axis, traces, inside) => {
    if (axis.range || axis.type === "category" || axis.type === "log") return null;
    let low = Infinity, high = -Infinity;
    for (const one of traces) {
      const own = inside ? { ...one, y: one.y.map((value, k) => (inside(one.x[k]) ? value : null)) } : one;
      for (const value of heights(own)) { if (value < low) low = value; if (value > high) high = value; }
    }
    if (!Number.isFinite(low)) return null;
    if (axis.rangemode === "tozero") low = Math.min(low, 0);
    const pad = 0.05 * (high - low || Math.abs(high) || 1);
    return [low === 0 ? 0 : low - pad, high === 0 ? 0 : high + pad];
  };

  // ---- drawing -------------------------------------------------------------------------------
  const draw = (place, state, { width, height, name }) => {
    const { traces, layout } = state;
    place.replaceChildren();
    count += 1;
    const narrow = width < NARROW;
    const legend = layout.showlegend === false ? null : keys(place, state, { width, height, name });
    const room = Math.max(120, height - (legend ? legend.offsetHeight : 0));
    const view = svg(place, "svg", { width, height: room, viewBox: `0 0 ${width} ${room}`, role: "img", "aria-label": name });
    const visible = traces.filter((one) => !state.hidden.has(one.group));
    const across = visible.some(sideways);
    const axes = [layout.yaxis || {}, layout.yaxis2 || {}];
    const panels = [0, 1].filter((panel) => panel === 0 || layout.yaxis2);
    const xaxis = layout.xaxis || {};
    const bottom = room - (xaxis.title ? 38 : 20), top = 8;
    const inside = state.range ? (value) => value >= state.range[0] && value <= state.range[1] : null;
    const rows = panels.map((panel) => {
      const [low, high] = axes[panel].domain || [0, 1];
      const own = visible.filter((one) => one.panel === panel);
      const ends = [bottom - (bottom - top) * low, bottom - (bottom - top) * high];
      const reverse = axes[panel].autorange === "reversed";
      const values = own.flatMap((one) => one.y);
      const reach = across ? null : reachOf(axes[panel], own, inside);
      return { own, from: ends[0], to: ends[1], axis: axes[panel], y: scale(axes[panel], values, ...(reverse ? [ends[1], ends[0]] : ends), reach) };
    });
    // the margin on the left follows the widest label
    const labels = rows.flatMap((row) => row.y.ticks(narrow ? 4 : 6).map(row.y.label));
    const left = Math.min(width * 0.36, 14 + 6.8 * Math.max(3, ...labels.map((text) => text.length)) + (axes[0].title ? 18 : 0));
    const right = width - 10;
    const every = visible.flatMap((one) => one.x);
    const bars = visible.filter((one) => one.type === "bar");
    const x = scale(xaxis, every, left, right, state.range || (across ? padded(every) : barReach(xaxis, bars, every)));
    for (const row of rows) frame(view, row, x, { left, right, narrow });
    across ? sideLabels(view, x, { bottom, top, left }) : null;
    timeLabels(view, x, xaxis, { bottom, left, right, room, narrow });
    for (const row of rows) contents(view, row, x, { left, right, bars, across });
    (layout.shapes || []).forEach((shape) => mark(view, shape, x, rows[0], { top, bottom }));
    (layout.annotations || []).forEach((words) => caption(view, words, x, { top, left, right }));
    place.drawn = { width, height, shown: visible.length };
    pointer(place, view, state, { x, rows, left, right, top, bottom, across, xaxis, redraw: () => draw(place, state, { width, height, name }) });
  };
  const padded = (values) => {
    const known = [...values.filter(isNumber), 0];
    const low = Math.min(...known), high = Math.max(...known), pad = 0.05 * (high - low || 1);
    return [low === 0 ? 0 : low - pad, high === 0 ? 0 : high + pad];
  };
  const barReach = (axis, bars, values) => {
    if (!bars.length || axis.range || values.some((value) => typeof value === "string")) return null;
    const half = Math.max(...bars.map((one) => (one.widths ? Math.max(...one.widths) : gap(one.x)) / 2));
    return [values.reduce((a, b) => Math.min(a, b)) - half, values.reduce((a, b) => Math.max(a, b)) + half];
  };
  const gap = (x) => x.slice(1).reduce((least, value, k) => Math.min(least, value - x[k]), Infinity) || 1;

  const frame = (view, row, x, { left, right, narrow }) => {
    for (const tick of row.y.ticks(narrow ? 4 : Math.max(3, Math.round((row.from - row.to) / 42)))) {
      const y = row.y.at(tick);
      if (!row.y.names) svg(view, "line", { x1: left, x2: right, y1: y, y2: y, class: tick === 0 ? "zero" : "grid" });
      svg(view, "text", { x: left - 6, y: y + 4, class: "tick end" }, row.y.label(tick));
    }
    if (row.axis.title) {
      const middle = (row.from + row.to) / 2;
      svg(view, "text", { transform: `translate(12 ${middle}) rotate(-90)`, class: "title" }, row.axis.title.text);
    }
  };
  const sideLabels = (view, x, { bottom, top }) => {
    for (const tick of x.ticks(6)) svg(view, "line", { x1: x.at(tick), x2: x.at(tick), y1: top, y2: bottom, class: tick === 0 ? "zero" : "grid" });
  };
  const timeLabels = (view, x, axis, { bottom, left, right, room, narrow }) => {
    let last = -Infinity;
    for (const tick of x.ticks(narrow ? 4 : 8)) {
      const text = x.label(tick), half = 3.3 * text.length, middle = x.at(tick);
      if (middle - half < last + 6 || middle + half > right + 12 || middle < left - 1) continue;
      svg(view, "line", { x1: middle, x2: middle, y1: bottom, y2: bottom + 4, class: "zero" });
      svg(view, "text", { x: middle, y: bottom + 16, class: "tick middle" }, text);
      last = middle + half;
    }
    if (axis.title) svg(view, "text", { x: (left + right) / 2, y: room - 6, class: "title" }, axis.title.text);
  };

  const contents = (view, row, x, { left, right, bars, across }) => {
    const id = `clip-${count}-${Math.round(row.to)}`;
    const clip = svg(svg(view, "defs"), "clipPath", { id });
    svg(clip, "rect", { x: left - 4, y: row.to - 3, width: right - left + 8, height: row.from - row.to + 6 });
    const layer = svg(view, "g", { "clip-path": `url(#${id})` });
    let before = null;
    for (const one of row.own) {
      const group = svg(layer, "g", { class: "trace" });
      if (one.type === "bar") (across ? layDown : stand)(group, one, x, row, bars);
      else {
        const points = one.x.map((value, k) => (isNumber(one.y[k]) || typeof one.y[k] === "string" ? [x.at(value), row.y.at(one.y[k])] : null));
        if (one.fill === "tozeroy") area(group, one, points, row.y.at(Math.min(Math.max(0, row.y.low), row.y.high)));
        if (one.fill === "tonexty" && before) paint(svg(group, "path", { d: `${path(points)} ${path([...before].reverse()).replace("M", "L")} Z`, stroke: "none" }), "fill", one.fillcolor);
        const mode = one.mode || "lines", line = one.line || {};
        if (mode.includes("lines") && line.width !== 0) {
          const drawn = svg(group, "path", { d: path(points, line.shape), fill: "none", "stroke-width": line.width || 1.6, "stroke-dasharray": DASHES[line.dash] || "", "stroke-linejoin": "round" });
          paint(drawn, "stroke", line.color);
        }
        if (one.bars) errors(group, one, x, row);
        if (mode.includes("markers")) markers(group, one, points);
        before = points;
      }
    }
  };
  const path = (points, shape) => {
    let text = "", last = null;
    for (const point of points) {
      if (!point) { last = null; continue; }
      const [a, b] = point.map((value) => value.toFixed(1));
      if (!last) text += `M${a},${b}`;
      else if (shape === "hv") text += `H${a}V${b}`;
      else if (shape === "vh") text += `V${b}H${a}`;
      else if (shape === "hvh") text += `H${((Number(a) + last[0]) / 2).toFixed(1)}V${b}H${a}`;
      else text += `L${a},${b}`;
      last = point;
    }
    return text;
  };
  const area = (group, one, points, zero) => {
    let run = [];
    const close = () => {
      if (run.length > 1) {
        const shape = (one.line || {}).shape;
        const d = `${path(run, shape)}V${zero.toFixed(1)}H${run[0][0].toFixed(1)}Z`;
        paint(svg(group, "path", { d, stroke: "none" }), "fill", one.fillcolor);
      }
      run = [];
    };
    for (const point of points) point ? run.push(point) : close();
    close();
  };
  const stand = (group, one, x, row, bars) => {
    const zero = row.y.at(Math.max(0, row.y.low));
    one.x.forEach((value, k) => {
      if (!isNumber(one.y[k])) return;
      const wide = one.widths ? one.widths[k] : 0.96 * gap(one.x);
      const half = x.names ? 0.4 * x.step : (x.at(value + wide / 2) - x.at(value - wide / 2)) / 2;
      const part = 2 * half / bars.length, from = x.at(value) - half + part * bars.indexOf(one);
      const y = row.y.at(one.y[k]);
      paint(svg(group, "rect", { x: from, width: Math.max(0.5, part - 0.3), y: Math.min(y, zero), height: Math.abs(y - zero) }), "fill", one.marker.color);
    });
  };
  const layDown = (group, one, x, row, bars) => {
    one.y.forEach((name, k) => {
      if (!isNumber(one.x[k])) return;
      const part = 0.7 * row.y.step / bars.length;
      const y = row.y.at(name) - 0.35 * row.y.step + part * bars.indexOf(one);
      const ends = [x.at(0), x.at(one.x[k])].sort((a, b) => a - b);
      paint(svg(group, "rect", { x: ends[0], width: ends[1] - ends[0], y, height: part }), "fill", one.marker.color);
    });
  };
  const markers = (group, one, points) => {
    const own = one.marker || {}, size = (own.size || 6) / 2, colour = own.color || (one.line || {}).color;
    for (const point of points) {
      if (!point) continue;
      const [a, b] = point;
      const turn = own.symbol === "triangle-down" ? -1 : 1;
      const made = /^triangle/.test(own.symbol || "")
        ? svg(group, "path", { d: `M${a - size},${b + turn * size}h${2 * size}l${-size},${-2 * turn * size}Z`, opacity: own.opacity })
        : svg(group, "circle", { cx: a, cy: b, r: size, opacity: own.opacity });
      paint(made, "fill", colour);
    }
  };
  const errors = (group, one, x, row) => {
    one.x.forEach((value, k) => {
      if (!isNumber(one.y[k])) return;
      const a = x.at(value), low = row.y.at(one.y[k] - one.bars.below[k]), high = row.y.at(one.y[k] + one.bars.above[k]);
      paint(svg(group, "path", { d: `M${a},${low}V${high}M${a - 3},${low}h6M${a - 3},${high}h6`, fill: "none" }), "stroke", one.error_y.color);
    });
  };
  const mark = (view, shape, x, row, { top, bottom }) => {
    const ends = shape.yref === "paper" ? [bottom, top] : [row.y.at(shape.y0), row.y.at(shape.y1)];
    const made = svg(view, "line", { x1: x.at(shape.x0), x2: x.at(shape.x1), y1: ends[0], y2: ends[1], "stroke-width": shape.line.width, "stroke-dasharray": DASHES[shape.line.dash] || "", class: "mark" });
    paint(made, "stroke", shape.line.color);
  };
  const caption = (view, words, x, { top, left, right }) => {
    const at = x.at(words.x), wide = 6.2 * words.text.length;
    // the side that was wished for, unless the words would leave the chart there
    const before = words.xanchor === "right" ? at - wide > left : at + wide > right;
    const y = top + 12 + 14 * words.row;
    const place = Math.min(Math.max(at + (before ? -5 : 5), left), right);
    paint(svg(view, "text", { x: place, y, class: `caption ${before ? "end" : ""}` }, words.text), "fill", words.font.color);
  };

  // ---- reading -------------------------------------------------------------------------------
  const keys = (place, state, size) => {
    const named = state.traces.filter((one) => one.name && one.showlegend !== false);
    if (!named.length) return null;
    const legend = html(place, "div", "legend");
    legend.style.width = `${size.width}px`; // it is as high on paper as it was measured
    for (const one of named) {
      const key = html(legend, "button", "key", undefined);
      key.type = "button";
      key.setAttribute("aria-pressed", String(!state.hidden.has(one.group)));
      const swatch = svg(key, "svg", { width: 20, height: 10, "aria-hidden": "true" });
      const colour = (one.line || {}).color || (one.marker || {}).color || one.fillcolor;
      const filled = one.fill === "tonexty" || one.type === "bar" || one.mode === "markers";
      if (filled) paint(svg(swatch, "rect", { width: 12, height: 10, x: 4, rx: 2 }), "fill", one.type === "bar" || one.mode === "markers" ? colour : one.fillcolor);
      else paint(svg(swatch, "line", { x1: 0, x2: 20, y1: 5, y2: 5, "stroke-width": Math.max(2, (one.line || {}).width || 2), "stroke-dasharray": DASHES[(one.line || {}).dash] || "" }), "stroke", colour);
      html(key, "span", "legend-text", one.name);
      key.addEventListener("click", () => {
        if (!state.hidden.delete(one.group)) state.hidden.add(one.group);
        const at = named.indexOf(one);
        draw(place, state, size);
        place.querySelectorAll(".key")[at].focus();
      });
    }
    return legend;
  };
  const nearest = (values, wanted) => {
    let best = -1, distance = Infinity;
    for (let k = 0; k < values.length; k += 1) {
      const away = Math.abs(values[k] - wanted);
      if (away < distance) { distance = away; best = k; }
    }
    return best;
  };
  const pointer = (place, view, state, { x, rows, left, right, top, bottom, across, xaxis, redraw }) => {
    const tip = html(place, "div", "tip");
    tip.setAttribute("role", "status");
    tip.hidden = true;
    const line = svg(view, "line", { y1: top, y2: bottom, class: "cursor" });
    const box = svg(view, "rect", { y: top, height: bottom - top, class: "zoom" });
    let cursor = null, start = null;
    const clear = () => { tip.hidden = true; line.classList.remove("on"); box.classList.remove("on"); cursor = null; start = null; };
    const lines = (value) => {
      const entries = [];
      let at = value;
      for (const row of rows) for (const one of row.own) {
        if (!one.name || one.hoverinfo === "skip" || !one.x.length) continue;
        const k = nearest(one.x, value);
        if (one.mode === "markers" && Math.abs(x.at(one.x[k]) - x.at(value)) > 4) continue;
        if (!entries.length) at = one.x[k];
        const worth = one.y[k];
        if (worth === null || Number.isNaN(worth)) continue;
        entries.push([one.name, isNumber(worth) ? shown(worth, row.axis.hoverformat || row.axis.tickformat || ",.4~g") : String(worth)]);
      }
      return [at, entries];
    };
    const show = (pixel) => {
      cursor = Math.min(Math.max(pixel, left), right);
      const [at, entries] = lines(x.back(cursor));
      if (!entries.length) return clear();
      const spot = x.at(at);
      line.setAttribute("x1", spot);
      line.setAttribute("x2", spot);
      line.classList.add("on");
      tip.hidden = false;
      tip.replaceChildren();
      html(tip, "strong", "", xaxis.type === "date" ? `${moment(at)} UTC` : shown(at, xaxis.hoverformat || xaxis.tickformat || ",.4~g"));
      for (const [name, value] of entries.slice(0, 14)) html(tip, "span", "", `${name} ${value}`);
      const far = spot > (left + right) / 2;
      tip.style.left = far ? "auto" : `${spot + 12}px`;
      tip.style.right = far ? `${place.clientWidth - spot + 12}px` : "auto";
      tip.style.top = `${view.offsetTop || (place.querySelector(".legend") || { offsetHeight: 0 }).offsetHeight}px`;
    };
    place.tabIndex = 0;
    place.onkeydown = null;
    if (across || !x.back) { place.removeAttribute("tabindex"); return; }
    const pixel = (event) => event.clientX - view.getBoundingClientRect().left;
    view.addEventListener("pointermove", (event) => {
      show(pixel(event));
      if (start !== null && event.pointerType === "mouse") {
        const ends = [start, Math.min(Math.max(pixel(event), left), right)].sort((a, b) => a - b);
        box.setAttribute("x", ends[0]);
        box.setAttribute("width", ends[1] - ends[0]);
        box.classList.add("on");
      }
    });
    view.addEventListener("pointerdown", (event) => { start = event.pointerType === "mouse" ? pixel(event) : null; });
    view.addEventListener("pointerup", (event) => {
      const end = pixel(event);
      if (start !== null && Math.abs(end - start) > 12 && xaxis.type === "date") {
        state.range = [start, end].sort((a, b) => a - b).map((each) => x.back(Math.min(Math.max(each, left), right)));
        redraw();
      }
      start = null;
    });
    view.addEventListener("dblclick", () => { state.range = null; redraw(); });
    view.addEventListener("pointerleave", clear);
    place.onkeydown = (event) => {
      if (event.target !== place) return;
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { event.preventDefault(); show((cursor ?? (left + right) / 2) + step * (right - left) / 60); }
      if (event.key === "Escape") { state.range = null; clear(); }
    };
    place.onblur = clear;
  };
  return { read, draw };
})();
