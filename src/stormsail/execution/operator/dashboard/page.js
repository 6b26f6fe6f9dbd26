"use strict";
// Draws what /api/stream sends. Text goes in by textContent alone: nothing that a venue says is markup.
const $ = (id) => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
const MINUS = "\u2212";

function number(value, digits) {
  if (value === null || value === undefined) return "\u2013";
  const text = Math.abs(value).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return value < 0 && Number(text.replace(/,/g, "")) !== 0 ? MINUS + text : text;
}
const percent = (value, digits = 2) => (value === null || value === undefined ? "\u2013" : number(100 * value, digits) + " %");
const moment = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ");

function cell(row, text, kind) {
  const made = row.insertCell();
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// On a phone each row is a card (page.css), which takes a table's meaning away: roles give it back, and every value
// gets the name of its column.
function filled(row, item, fill, heads) {
  fill(row, item);
  row.setAttribute("role", "row");
  [...row.cells].forEach((own, i) => { own.setAttribute("role", "cell"); own.dataset.label = heads[i]; });
}

function rows(id, list, columns, nothing, fill) {
  const body = $(id), heads = [...body.parentNode.tHead.rows[0].cells].map((head) => head.textContent);
  body.replaceChildren();
  if (!list.length) {
    const only = cell(body.insertRow(), nothing, "empty");
    only.colSpan = columns;
  }
  for (const item of list) filled(body.insertRow(), item, fill, heads);
}

function shape(name, attributes, parent) {
  const made = document.createElementNS(NS, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  parent.appendChild(made);
  return made;
}

function line(svg, values, color, base) {
  svg.replaceChildren();
  const width = 1000, height = 200, count = values.length;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (count < 2) return;
  let low = Math.min(...values), high = Math.max(...values);
  if (base !== undefined) { low = Math.min(low, base); high = Math.max(high, base); }
  const span = high - low || Math.abs(high) || 1;
  const x = (i) => (width * i) / (count - 1);
  const y = (v) => 4 + (height - 8) * (1 - (v - low) / span);
  const points = values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  if (base !== undefined) {
    shape("line", { x1: 0, x2: width, y1: y(base), y2: y(base), stroke: "var(--line)", "vector-effect": "non-scaling-stroke" }, svg);
  }
  shape("polyline", { points, fill: "none", stroke: color, "stroke-width": 1.8, "vector-effect": "non-scaling-stroke" }, svg);
}

function bar(row, held, wanted) {
  // negative weights to the left of the middle; the line is the target
  const svg = shape("svg", { class: "bar", viewBox: "-100 0 200 16", role: "img" }, cell(row, "", "whole"));
  svg.setAttribute("aria-label", `held ${percent(held, 0)}, wanted ${percent(wanted, 0)}`);
  const scale = Math.max(1, Math.abs(held), Math.abs(wanted || 0));
  const at = (v) => (98 * v) / scale;
  shape("line", { x1: 0, x2: 0, y1: 0, y2: 16, stroke: "var(--muted)" }, svg);
  shape("rect", { x: Math.min(0, at(held)), width: Math.abs(at(held)), y: 4, height: 8, fill: "var(--accent)" }, svg);
  if (wanted !== null) shape("line", { x1: at(wanted), x2: at(wanted), y1: 0, y2: 16, stroke: "var(--bad)", "stroke-width": 2.5 }, svg);
}

function figure(id, text, sign) {
  $(id).textContent = text;
  $(id).className = "figure" + (sign > 0 ? " up" : sign < 0 ? " down" : "");
}

function drawdowns(equity) {
  let peak = -Infinity;
  return equity.map((value) => { peak = Math.max(peak, value); return value / peak - 1; });
}

function show(view) {
  document.title = `${view.name}: ${view.killed !== null ? "KILLED" : view.state}`;
  $("name").textContent = view.name;
  $("where").textContent = `${view.mode} on ${view.venue}, account ${view.account}, ${moment(view.at_ms)} UTC`;
  const state = view.killed !== null ? "KILLED" : view.state;
  $("state").textContent = state;
  $("state").className = "badge " + ({ ACTIVE: "good", REDUCING: "warn", STARTING: "", STOPPED: "" }[state] ?? "bad");
  const reason = view.killed !== null ? `Kill switch: ${view.killed}` : view.state_reason;
  $("reason").hidden = !reason;
  $("reason").textContent = reason;
  $("reason").className = "note" + (view.killed !== null || state === "HALTED" ? " bad" : "");
  $("kill").disabled = view.killed !== null;
  const gain = view.equity !== null && view.equity_start ? view.equity / view.equity_start - 1 : null;
  figure("equity", `${number(view.equity, 2)} ${view.currency}`, 0);
  $("since").textContent = gain === null ? "" : `${percent(gain)} since the start`;
  figure("day", percent(view.day_return), view.day_return);
  figure("drawdown", percent(view.drawdown), view.drawdown);
  const tail = view.tail;
  figure("predicted", tail ? percent(tail.predicted) : "\u2013", 0);
  $("tail").textContent = tail
    ? `worst ${percent(tail.alpha, 0)} of ${tail.horizon}; realised ${percent(tail.realised)} in ${tail.windows} window${tail.windows === 1 ? "" : "s"}` +
      (tail.limit === null ? "" : `; limit ${percent(tail.limit)}`)
    : "";
  line($("curve"), view.curve_equity, "var(--accent)", view.equity_start ?? undefined);
  line($("fall"), drawdowns(view.curve_equity), "var(--bad)", 0);
  $("curve").setAttribute("aria-label", `equity over time, now ${number(view.equity, 2)} ${view.currency}`);
  $("fall").setAttribute("aria-label", `drawdown over time, now ${percent(view.drawdown)}`);
  $("low").textContent = view.curve_equity.length ? `lowest ${number(Math.min(...view.curve_equity), 2)}` : "";
  $("high").textContent = view.curve_equity.length ? `highest ${number(Math.max(...view.curve_equity), 2)}` : "";
  const times = view.curve_ms;
  $("from").textContent = times.length ? moment(times[0]) : "";
  $("to").textContent = times.length ? moment(times[times.length - 1]) : "";
  rows("positions", view.positions, 7, "no position", (row, p) => {
    cell(row, p.symbol, "whole"); cell(row, percent(p.weight, 1)); cell(row, percent(p.target, 1));
    bar(row, p.weight, p.target);
    cell(row, p.quantity.replace("-", MINUS)); cell(row, p.price); cell(row, number(p.value, 2));
  });
  rows("orders", view.orders, 8, "no open order", (row, o) => {
    cell(row, moment(o.since_ms), "plain"); cell(row, o.symbol, "plain");
    for (const text of [o.side, o.quantity, o.filled, o.kind, o.status, o.client_id]) cell(row, text);
  });
  rows("decisions", view.decisions, 5, "no decision yet", (row, d) => {
    cell(row, moment(d.at_ms), "plain"); cell(row, d.symbol, "plain"); cell(row, percent(d.proposed, 1)); cell(row, percent(d.allowed, 1));
    cell(row, d.reason || "as proposed", "text");
  });
  const h = view.health;
  const seconds = (v) => {
    if (v === null) return "\u2013";
    if (v < 120) return `${number(v, v < 10 ? 1 : 0)} s`;
    const minutes = Math.floor(v / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    return days ? `${days} d ${hours % 24} h` : hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
  };
  const measured = [
    ["age of the newest bar", seconds(h.data_age_s)],
    ["clock against the venue", h.clock_offset_ms === null ? "\u2013" : `${number(h.clock_offset_ms, 0)} ms`],
    ["request budget used", percent(h.rate_used, 0)],
    ["last journal write", h.journal_lag_ms === null ? "\u2013" : `${number(h.journal_lag_ms, 1)} ms`],
    ["loop last turned", `${seconds(h.heartbeat_age_s)} ago`],
    ["running for", seconds(h.uptime_s)],
  ];
  $("health").replaceChildren();
  for (const [name, value] of measured) {
    const group = document.createElement("div");
    const term = document.createElement("dt"), said = document.createElement("dd");
    term.textContent = name; said.textContent = value;
    group.append(term, said);
    $("health").appendChild(group);
  }
  $("events").replaceChildren();
  for (const event of view.events) {
    const item = document.createElement("li"), when = document.createElement("time");
    item.className = event.level;
    when.textContent = moment(event.at_ms);
    item.append(when, document.createTextNode(event.text));
    $("events").appendChild(item);
  }
  document.documentElement.dataset.ready = "yes";
}

function linked(yes) {
  $("link").textContent = yes ? "connected" : "connection lost";
  $("link").className = yes ? "badge good" : "badge off";
}

const stream = new EventSource("/api/stream");
stream.onopen = () => linked(true);
stream.onerror = () => linked(false);
stream.onmessage = (message) => show(JSON.parse(message.data));
stream.addEventListener("problem", (message) => {
  $("state").textContent = "UNREADABLE";
  $("state").className = "badge bad";
  $("reason").textContent = JSON.parse(message.data);
  $("reason").className = "note bad";
  $("reason").hidden = false;
});

$("kill").onclick = () => { $("answer").hidden = true; $("token").value = ""; $("confirm").showModal(); $("token").focus(); };
async function trip() {
  const said = (text, bad) => { $("answer").textContent = text; $("answer").className = "note" + (bad ? " bad" : ""); $("answer").hidden = false; };
  try {
    const answer = await fetch("/api/kill", { method: "POST", headers: { authorization: `Bearer ${$("token").value.trim()}` } });
    said(await answer.text(), !answer.ok);
    if (answer.ok) { $("token").value = ""; $("confirm").close(); }
  } catch (error) {
    said("no answer: run `stormsail stop` on the machine, or put the kill file into the run's folder", true);
  }
}
$("sure").onclick = trip;
$("token").onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); trip(); } };
