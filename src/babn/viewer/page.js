"use strict";
// The viewer's page. Texts reach the document by textContent alone.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ROWS_IN_TABLE = 6;
const CLASSES = 8;
const LABEL_GAP = 12;
const LARGEST_CELL = 26;
const SHARP_TILE = 64;
const NO_SPREAD = 0.005;
const ADDRESS_DELAY_MS = 200;
const EXAMPLES = [
  { name: "one text", text: "The bank raised its interest rates again." },
  { name: "a word with two meanings", text: "We had a picnic on the bank of the river.", second: "The bank raised its interest rates.", relation: "compare" },
  { name: "a premise and a hypothesis", text: "A man plays the guitar on the street.", second: "Somebody is making music.", relation: "pair" },
];
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdfd\ufe70-\ufefc]/;

const state = { chain: 0, layer: 0, head: 0, mode: "mean", sample: 0 };
let columns = [];
let turn = 0;
let request = {};
let remembering = 0;

const $ = (id) => document.getElementById(id);
const percent = (x, digits = 1) => `${(100 * x).toFixed(digits)}\u00a0%`;
const short = (x) => percent(x, x < 0.0995 ? 1 : 0);
const quoted = (text) => `“${text}”`;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function fillOptions(select, names, index) {
  const kept = Math.min(Math.max(index, 0), names.length - 1);
  select.replaceChildren(...names.map((name, i) => Object.assign(element("option", "", name), { value: i })));
  select.selectedIndex = kept;
  return kept;
}

// --- Decoding: a layer is decoded when it is first shown ---------------------------------------

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function decode(chain, index, drawn) {
  const layer = chain.layers[index];
  layer.decoded ??= inflate(layer.data).then((bytes) => planes(bytes, chain, layer, drawn));
  return layer.decoded;
}

function planes(bytes, chain, layer, drawn) {
  const [queries, keys] = chain.size;
  const size = (chain.heads + 1) * queries * chain.kept;
  let at = 0;
  const next = () => bytes.subarray(at, (at += size));
  const places = chain.kept < keys ? sumGaps(next(), next(), chain.kept) : null;
  const square = (scale) => Float32Array.from({ length: 256 }, (_, b) => scale * (b / 255) ** 2);
  const linear = Float32Array.from({ length: 256 }, (_, b) => (layer.std * b) / 255);
  const mean = { bytes: next(), table: square(1) };
  const std = { bytes: next(), table: linear };
  const samples = Array.from({ length: drawn }, () => ({ bytes: next(), table: square(layer.sample) }));
  return { places, mean, std, samples };
}

function sumGaps(low, high, kept) {
  const places = new Uint16Array(low.length);
  for (let i = 0, place = -1; i < low.length; i++) {
    if (i % kept === 0) place = -1;
    place += low[i] + 256 * high[i];
    places[i] = place;
  }
  return places;
}

// --- The selection ----------------------------------------------------------------------------

/** The plane that the controls select. */
function chosen(layer) {
  return state.mode === "sample" ? layer.samples[state.sample] : layer[state.mode];
}

/** One query's kept entries: keys and the values of every plane. */
function entries(view, query) {
  const { chain, layer, head } = view;
  const start = (head * chain.size[0] + query) * chain.kept;
  const sample = layer.samples[state.sample];
  return Array.from({ length: chain.kept }, (_, i) => ({
    key: layer.places ? layer.places[start + i] : i,
    mean: layer.mean.table[layer.mean.bytes[start + i]],
    std: layer.std.table[layer.std.bytes[start + i]],
    sample: sample.table[sample.bytes[start + i]],
  }));
}

/** Smallest and largest value of the chosen plane in some heads; without masked pairs. */
function range({ chain, layer }, first, last = first) {
  const plane = chosen(layer);
  const count = chain.size[0] * chain.kept;
  let low = 255, high = 0;
  for (let i = first * count; i < (last + 1) * count; i++) {
    const byte = plane.bytes[i];
    if (byte > high) high = byte;
    if (byte < low && (state.mode !== "std" || layer.mean.bytes[i] || byte)) low = byte;
  }
  return [state.mode === "std" ? plane.table[Math.min(low, high)] : 0, plane.table[high]];
}

function shade(value, [low, high]) {
  const part = high > low ? Math.max(0, (value - low) / (high - low)) : Number(high > 0 && value > 0);
  return state.mode === "std" ? 0.08 + 0.92 * part : Math.sqrt(part);
}

const show = (value) => (state.mode === "std" ? value.toFixed(2) : short(value));

// --- A column ---------------------------------------------------------------------------------

function makeColumn(content, index) {
  const root = element("section");
  root.append($("column").content.cloneNode(true));
  const find = (selector) => root.querySelector(selector);
  const column = { content, root, find, index, query: 0, hover: null, view: null };
  find(".text").append(...content.text.map((text) => Object.assign(element("span", "", text), { dir: "auto" })));
  root.setAttribute("aria-label", content.text.join(" / "));
  find(".prediction").hidden = !content.prediction;
  find(".queries").setAttribute("aria-label", "Tokens; choose the query");
  find(".hint").textContent = "Hover over a token, or use the arrow keys.";
  listen(column);
  return column;
}

function listen(column) {
  const words = column.find(".queries"), canvas = column.find(".map canvas");
  const wordAt = (event) => event.target.closest(".word");
  words.addEventListener("pointerover", (event) => wordAt(event) && hover(column, Number(wordAt(event).dataset.index)));
  words.addEventListener("pointerleave", () => hover(column, null));
  words.addEventListener("click", (event) => wordAt(event) && select(column, Number(wordAt(event).dataset.index), true));
  words.addEventListener("focusin", (event) => wordAt(event) && select(column, Number(wordAt(event).dataset.index)));
  words.addEventListener("keydown", (event) => move(column, event));
  canvas.addEventListener("pointermove", (event) => readCell(column, event));
  canvas.addEventListener("pointerleave", () => (column.find(".cell").textContent = ""));
  canvas.addEventListener("click", (event) => select(column, cellAt(column, event)[0]));
}

/** Columns in which a word has the same place: all with the same tokens. */
function together(column) {
  const same = (other) => JSON.stringify(tokens(other, "queries")) === JSON.stringify(tokens(column, "queries"));
  return columns.filter((other) => other === column || same(other));
}

function tokens(column, side) {
  const chain = chainOf(column);
  const words = column.content[chain[side]];
  const count = chain.size[side === "queries" ? 0 : 1];
  return words.length === count ? words : Array.from({ length: count }, (_, i) => [String(i + 1), 0]);
}

function chainOf(column) {
  return column.content.chains[Math.min(state.chain, column.content.chains.length - 1)];
}

function hover(column, query) {
  for (const each of together(column)) {
    each.hover = query;
    paintQuery(each);
  }
}

function select(column, query, focus = false) {
  for (const each of together(column)) {
    each.query = query;
    each.hover = null;
    paintQuery(each);
  }
  if (focus) column.words.queries[query].focus();
  remember();
}

function move(column, event) {
  const words = column.words.queries, at = column.query, last = words.length - 1;
  const forward = column.rightToLeft ? -1 : 1;
  const steps = { ArrowRight: at + forward, ArrowLeft: at - forward, Home: 0, End: last };
  const target = event.key in steps ? steps[event.key] : byLine(words, at, { ArrowDown: 1, ArrowUp: -1 }[event.key]);
  if (target === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  select(column, Math.min(Math.max(target, 0), last), true);
}

/** The nearest word on the line above or below. */
function byLine(words, at, step) {
  if (!step) return undefined;
  let i = at;
  while (words[i] && words[i].offsetTop === words[at].offsetTop) i += step;
  if (!words[i]) return at;
  const line = words[i].offsetTop, distance = (k) => Math.abs(words[k].offsetLeft - words[at].offsetLeft);
  let best = i;
  for (; words[i] && words[i].offsetTop === line; i += step) if (distance(i) < distance(best)) best = i;
  return best;
}

// --- Painting ---------------------------------------------------------------------------------

/** Decodes what is chosen and paints every column; a later call overtakes an earlier one. */
async function paint() {
  const mine = ++turn;
  for (const label of document.querySelectorAll("[name=mode]")) label.checked = label.value === state.mode;
  $("sample-label").hidden = state.mode !== "sample";
  $("sample-number").textContent = state.sample + 1;
  $("explanation").textContent = EXPLANATIONS[state.mode];
  const layers = await Promise.all(columns.map((column) => {
    const chain = chainOf(column), index = Math.min(state.layer, chain.layers.length - 1);
    return decode(chain, index, column.content.drawn);
  }));
  if (mine !== turn) return;
  columns.forEach((column, i) => paintColumn(column, layers[i]));
  remember();
  document.body.dataset.painted = [state.chain, state.layer, state.head, state.mode, state.sample].join();
}

const EXPLANATIONS = {
  mean: "Mean weight: the posterior mean of the attention from one token to each other token.",
  std: "Uncertainty: the standard deviation of a weight over samples, relative to its mean. 0 means that the weight never varies; 1 means that it varies by as much as its mean.",
  sample: "One sample: the attention weights of one forward pass. The dot with a ring marks the prediction of this sample.",
};

function paintColumn(column, layer) {
  const chain = chainOf(column);
  const head = Math.min(state.head, chain.heads);
  column.view = { chain, layer, head };
  column.query = Math.min(column.query, chain.size[0] - 1);
  column.range = range(column.view, head);
  if (column.shown !== chain) makeWords(column, chain);
  const number = Math.min(state.layer, chain.layers.length - 1) + 1;
  const whose = head ? `head ${head} of ${chain.heads}` : `mean over ${chain.heads} heads`;
  column.find(".place").textContent = `Layer ${number} of ${chain.layers.length}, ${whose}`;
  column.find(".draw").textContent = `sample ${state.sample + 1}`;
  column.root.style.setProperty("--shade-colour", state.mode === "std" ? "var(--spread)" : "var(--weight)");
  column.root.style.setProperty("--map-colour", state.mode === "std" ? "var(--map-spread)" : "var(--map-weight)");
  if (column.content.prediction) paintPrediction(column);
  paintMap(column);
  paintHeads(column);
  paintQuery(column);
}

function makeWords(column, chain) {
  column.shown = chain;
  const crossed = chain.queries !== chain.keys;
  const queries = tokens(column, "queries").map(makeWord);
  const keys = crossed ? tokens(column, "keys").map(makeWord) : queries;
  column.words = { queries, keys };
  queries.forEach((word) => word.setAttribute("role", "option"));
  column.find(".queries").replaceChildren(...queries);
  column.find(".keys").replaceChildren(...(crossed ? keys : []));
  column.find(".keys").hidden = !crossed;
  for (const side of column.root.querySelectorAll(".side")) side.hidden = !crossed;
  const letters = tokens(column, "queries").filter(([, flags]) => !(flags & 1)).map(([text]) => text).join("");
  column.rightToLeft = RIGHT_TO_LEFT.test((letters.match(/\p{L}/u) || [""])[0]);
  for (const words of column.root.querySelectorAll(".words")) words.dir = column.rightToLeft ? "rtl" : "ltr";
}

function makeWord([text, flags], index) {
  const word = element("span", `word${flags & 1 ? " special" : ""}${flags & 2 ? " joined" : ""}`);
  const token = element("span", "token", text);
  token.dir = "auto";
  const number = element("span", "number");
  number.dir = "ltr";
  word.append(token, number);
  word.dataset.index = index;
  return word;
}

/** Shades the words by the attention of the hovered or chosen query. */
function paintQuery(column) {
  if (!column.view) return;
  const { queries, keys } = column.words, query = column.hover ?? column.query;
  const row = entries(column.view, query);
  const top = Math.max(...row.map((entry) => entry[state.mode]));
  const values = new Array(keys.length).fill(null);
  for (const entry of row) values[entry.key] = entry[state.mode];
  keys.forEach((word, i) => {
    const masked = values[i] === null || (state.mode === "std" && values[i] === 0);
    word.style.setProperty("--shade", masked ? 0 : shade(values[i], state.mode === "std" ? column.range : [0, top]).toFixed(3));
    word.lastChild.textContent = values[i] === null ? "·" : show(values[i]);
  });
  queries.forEach((word, i) => {
    word.classList.toggle("here", i === query);
    word.setAttribute("aria-selected", i === query);
    word.tabIndex = i === column.query ? 0 : -1;
  });
  paintReading(column, query, row);
  paintMarker(column, query);
}

function paintReading(column, query, row) {
  const names = tokens(column, "keys").map(([text]) => text);
  const sum = row.reduce((total, entry) => total + entry.mean, 0) || 1;
  const spread = row.reduce((total, entry) => total + entry.mean * entry.std, 0) / sum;
  const best = [...row].sort((a, b) => b[state.mode] - a[state.mode]).slice(0, ROWS_IN_TABLE);
  const most = row.reduce((a, b) => (b.mean > a.mean ? b : a));
  const { kept, size } = column.view.chain;
  const part = kept < size[1] ? ` Shown are the ${kept} largest weights, ${percent(Math.min(sum, 1), 0)} of the attention.` : "";
  column.find(".sentence").textContent =
    `${quoted(tokens(column, "queries")[query][0])} attends most to ${quoted(names[most.key])} (${short(most.mean)}). ` +
    `The standard deviation of its weights is about ${percent(spread, 0)} of their mean: ${steadiness(spread)}.${part}`;
  column.find("tbody").replaceChildren(...best.map((entry) => {
    const line = element("tr"), name = element("th", "", names[entry.key]);
    name.scope = "row";
    name.dir = "auto";
    line.append(name, element("td", "", percent(entry.mean)), element("td", "", entry.std.toFixed(2)), element("td", "", percent(entry.sample)));
    return line;
  }));
}

function steadiness(spread) {
  if (spread < 0.005) return "no uncertainty";
  if (spread < 0.15) return "low uncertainty";
  return spread < 0.5 ? "moderate uncertainty" : "high uncertainty";
}

// --- The heat map -----------------------------------------------------------------------------

function paintMap(column) {
  const { chain, head } = column.view, canvas = column.find(".map canvas");
  paintPixels(canvas, column, head, column.range);
  placeMap(column);
  column.find(".low").textContent = show(column.range[0]);
  column.find(".high").textContent = show(column.range[1]);
  column.find(".kept").textContent = keptNote(column);
  canvas.setAttribute("aria-label", `Heat map of ${chain.title.toLowerCase()}, ${column.find(".place").textContent}: rows are queries, columns are keys. The list of tokens above has the numbers.`);
}

function paintPixels(canvas, column, head, limits) {
  const { chain, layer } = column.view, [queries, keys] = chain.size, plane = chosen(layer);
  Object.assign(canvas, { width: keys, height: queries });
  const image = new ImageData(keys, queries);
  const colour = mapColour(column.root);
  const alphas = Array.from(plane.table, (value) => Math.round(255 * shade(value, limits)));
  if (state.mode === "std") alphas[0] = 0; // masked
  const start = head * queries * chain.kept;
  for (let i = 0; i < queries * chain.kept; i++) {
    const key = layer.places ? layer.places[start + i] : i % chain.kept;
    const at = 4 * (Math.floor(i / chain.kept) * keys + key);
    [image.data[at], image.data[at + 1], image.data[at + 2]] = colour;
    image.data[at + 3] = alphas[plane.bytes[start + i]];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Every head of the layer as a small map; all have one scale of colours. */
function paintHeads(column) {
  const { chain, head } = column.view;
  if (column.tiled !== chain) makeTiles(column, chain);
  const limits = range(column.view, 1, chain.heads);
  column.tiles.forEach((tile, i) => {
    paintPixels(tile.firstChild, column, i + 1, limits);
    tile.setAttribute("aria-pressed", head === i + 1);
  });
}

function makeTiles(column, chain) {
  column.tiled = chain;
  column.tiles = Array.from({ length: chain.heads }, (_, i) => {
    const tile = element("button", `tile${Math.max(...chain.size) > SHARP_TILE ? " fine" : ""}`);
    tile.type = "button";
    tile.append(element("canvas"), element("span", "", `head ${i + 1}`));
    tile.addEventListener("click", () => {
      state.head = state.head === i + 1 ? 0 : i + 1;
      $("head").selectedIndex = state.head;
      paint();
    });
    return tile;
  });
  column.find(".heads").replaceChildren(...column.tiles);
}

function mapColour(root) {
  const name = state.mode === "std" ? "--map-spread" : "--map-weight";
  return getComputedStyle(root).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

function keptNote(column) {
  const { chain, layer, head } = column.view, [queries, keys] = chain.size;
  if (chain.kept === keys) return "";
  let sum = 0;
  const count = queries * chain.kept;
  for (let i = head * count; i < (head + 1) * count; i++) sum += layer.mean.table[layer.mean.bytes[i]];
  return `To keep the page small, it holds the ${chain.kept} largest of ${keys} weights of each query: ${percent(Math.min(sum / queries, 1), 0)} of the attention.`;
}

function placeMap(column) {
  const [queries, keys] = column.view.chain.size;
  const room = column.find(".scroll").clientWidth - 6 * parseFloat(getComputedStyle(document.documentElement).fontSize);
  const size = Math.min(Math.max(Math.floor(room / keys), 1), LARGEST_CELL);
  if (column.size === size && column.labelled === column.view.chain) return;
  Object.assign(column, { size, labelled: column.view.chain });
  const canvas = column.find(".map canvas");
  canvas.style.width = `${size * keys}px`;
  canvas.style.height = `${size * queries}px`;
  column.find(".top").replaceChildren(...labels(tokens(column, "keys"), size, "left"));
  column.find(".left").replaceChildren(...labels(tokens(column, "queries"), size, "top"));
}

function labels(words, size, side) {
  const step = Math.ceil(LABEL_GAP / size), made = [];
  for (let i = 0; i < words.length; i += step) {
    const label = element("span", words[i][1] & 1 ? "dim" : "", words[i][0]);
    label.style[side] = `${(i + 0.5) * size}px`;
    made.push(label);
  }
  return made;
}

function paintMarker(column, query) {
  const canvas = column.find(".map canvas"), marker = column.find(".marker");
  marker.style.left = `${canvas.offsetLeft}px`;
  marker.style.top = `${canvas.offsetTop + query * column.size}px`;
  marker.style.width = `${canvas.offsetWidth}px`;
  marker.style.height = `${column.size}px`;
}

function cellAt(column, event) {
  const [queries, keys] = column.view.chain.size;
  const place = (at, count) => Math.min(Math.max(Math.floor(at / column.size), 0), count - 1);
  return [place(event.offsetY, queries), place(event.offsetX, keys)];
}

function readCell(column, event) {
  if (!column.view) return;
  const [query, key] = cellAt(column, event);
  const entry = entries(column.view, query).find((each) => each.key === key);
  const pair = `${quoted(tokens(column, "queries")[query][0])} to ${quoted(tokens(column, "keys")[key][0])}`;
  column.find(".cell").textContent = entry
    ? `${pair}: mean ${percent(entry.mean)}, std / mean ${entry.std.toFixed(2)}, sample ${state.sample + 1} ${percent(entry.sample)}`
    : `${pair}: not among the largest weights`;
}

// --- The prediction ---------------------------------------------------------------------------

function paintPrediction(column) {
  const { prediction } = column.content;
  if (!column.bars) makePrediction(column, prediction);
  for (const dots of column.bars) {
    dots.forEach((dot, i) => dot.classList.toggle("now", state.mode === "sample" && i === state.sample));
  }
}

function makePrediction(column, prediction) {
  const order = prediction.mean.map((_, i) => i).sort((a, b) => prediction.mean[b] - prediction.mean[a]);
  const shown = order.slice(0, CLASSES), value = prediction.kind === "identity";
  const all = prediction.samples.flat(), low = value ? Math.min(...all, 0) : 0, high = value ? Math.max(...all, 0) : 1;
  const place = (x) => `${(100 * (x - low)) / (high - low || 1)}%`;
  column.bars = shown.map((i) => addBar(column.find(".bars"), prediction, i, place, value));
  const more = order.length - shown.length;
  column.find(".verdict").textContent = verdict(prediction, order) + (more ? ` ${more} less likely classes are not shown.` : "");
  column.find(".unsure").replaceChildren(...(value ? [] : uncertainty(prediction)));
}

function shortened(x) {
  return x.toFixed(Math.abs(x) < 100 ? 3 : 1);
}

function addBar(bars, prediction, i, place, value) {
  const track = element("div", "track"), fill = element("div", "fill");
  const label = value
    ? `${shortened(prediction.mean[i])} ± ${shortened(prediction.std[i])}`
    : `${(100 * prediction.mean[i]).toFixed(0)} % ± ${(100 * prediction.std[i]).toFixed(1)}`;
  fill.style.width = place(prediction.mean[i]);
  const dots = prediction.samples.map((sample) => {
    const dot = element("i", "dot");
    dot.style.left = place(sample[i]);
    return dot;
  });
  track.setAttribute("aria-hidden", "true");
  track.append(fill, ...dots);
  bars.append(element("span", "name", prediction.labels[i]), track, element("span", "value", label));
  return dots;
}

function verdict(prediction, order) {
  const count = prediction.samples.length, first = order[0];
  if (count > 1 && prediction.std.every((x) => x === 0)) {
    return `All ${count} samples of attention give the same prediction: the model has little or no attention noise.`;
  }
  const dots = `Each dot is one of ${count} samples of attention; ± is their standard deviation.`;
  if (prediction.kind !== "softmax" || order.length < 2) return dots;
  const agree = prediction.samples.filter((sample) => sample.every((x, i) => i === first || x <= sample[first])).length;
  return `${agree} of ${count} samples predict ${quoted(prediction.labels[first])}. ${dots}`;
}

function uncertainty(prediction) {
  const most = prediction.kind === "sigmoid" ? prediction.labels.length * Math.log(2) : Math.log(prediction.labels.length);
  const relative = most ? prediction.entropy / most : 0;
  const part = prediction.entropy > 1e-9 ? prediction.mutual_information / prediction.entropy : 0;
  return [
    element("dt", "", `${percent(relative, 0)} of the maximum entropy`),
    element("dd", "", `Entropy ${prediction.entropy.toFixed(3)} nats. 0 % means certain of one class, 100 % that all classes are equally likely.`),
    element("dt", "", `${percent(part, 1)} of it due to attention`),
    element("dd", "", `Mutual information ${prediction.mutual_information.toFixed(4)} nats: the disagreement between samples. The rest would remain without uncertainty in attention.`),
  ];
}

// --- Controls and start -----------------------------------------------------------------------

function fillControls() {
  const longest = (count) => Math.max(...columns.map((column) => count(chainOf(column))));
  const count = Math.max(...columns.map((column) => column.content.chains.length));
  const most = columns.find((column) => column.content.chains.length === count).content.chains;
  state.chain = fillOptions($("chain"), most.map((chain) => (most.filter((c) => c.title === chain.title).length > 1 ? `${chain.title} (${chain.name})` : chain.title)), state.chain);
  $("chain-label").hidden = count < 2;
  state.layer = fillOptions($("layer"), Array.from({ length: longest((c) => c.layers.length) }, (_, i) => `${i + 1}`), state.layer);
  state.head = fillOptions($("head"), ["mean over heads", ...Array.from({ length: longest((c) => c.heads) }, (_, i) => `${i + 1}`)], state.head);
  const drawn = Math.min(...columns.map((column) => column.content.drawn));
  $("sample").max = drawn;
  state.sample = Math.min(state.sample, drawn - 1);
  $("sample").value = state.sample + 1;
  $("controls").hidden = false;
}

function open(contents) {
  columns = contents.map(makeColumn);
  $("columns").replaceChildren(...columns.map((column) => column.root));
  if (!columns.length) return;
  if (!turn) Object.assign(state, mostUncertain(), addressed());
  fillControls();
  paint();
}

/** The layer whose weights vary most, and the mode that shows it. */
function mostUncertain() {
  let best = { chain: 0, layer: 0, spread: 0 };
  for (const { content } of columns) {
    content.chains.forEach(({ layers }, chain) => layers.forEach(({ spread }, layer) => {
      if (spread > best.spread) best = { chain, layer, spread };
    }));
  }
  return { chain: best.chain, layer: best.layer, mode: best.spread < NO_SPREAD ? "mean" : "std" };
}

// --- The address: it keeps the selection, so that a link opens what its sender sees -------------

/** The part of the state that the address gives. */
function addressed() {
  const address = new URLSearchParams(location.hash.slice(1)), found = {};
  const number = (name) => (/^[0-9]{1,6}$/.test(address.get(name)) ? Number(address.get(name)) : undefined);
  if (number("attention")) found.chain = number("attention") - 1;
  if (number("layer")) found.layer = number("layer") - 1;
  if (number("sample")) found.sample = number("sample") - 1;
  if (address.get("head") === "mean") found.head = 0;
  else if (number("head")) found.head = number("head");
  if (Object.hasOwn(EXPLANATIONS, address.get("show"))) found.mode = address.get("show");
  if (number("token")) for (const column of columns) column.query = number("token") - 1;
  return found;
}

/** Writes the state into the address, a moment later because browsers limit how often. */
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const place = { attention: state.chain + 1, layer: state.layer + 1, head: state.head || "mean", show: state.mode };
    const address = new URLSearchParams({ ...request, ...place, sample: state.sample + 1, token: columns[0].query + 1 });
    try { history.replaceState(null, "", `#${address}`); } catch { /* A page inside a notebook has no address. */ }
  }, ADDRESS_DELAY_MS);
}

function follow() {
  if (!columns.length) return;
  Object.assign(state, addressed());
  fillControls();
  paint();
}

function listenToControls() {
  for (const name of ["chain", "layer", "head"]) {
    $(name).addEventListener("change", () => {
      state[name] = $(name).selectedIndex;
      if (name === "chain") fillControls();
      paint();
    });
  }
  for (const radio of document.querySelectorAll("[name=mode]")) {
    radio.addEventListener("change", () => { state.mode = radio.value; paint(); });
  }
  $("sample").addEventListener("input", () => { state.sample = Number($("sample").value) - 1; paint(); });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", paint);
  }
  addEventListener("hashchange", follow);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(paint, 100); });
}

// --- The form of `babn serve` -------------------------------------------------------------------

async function submit(event) {
  event?.preventDefault();
  const button = $("request").querySelector("[type=submit]");
  button.disabled = true;
  button.textContent = "Working …";
  $("error").textContent = "";
  try {
    request = { text: $("text").value, second: $("second").value, relation: $("relation").value };
    const headers = { "Content-Type": "application/json" };
    const response = await fetch("view", { method: "POST", headers, body: JSON.stringify(request) });
    const result = await response.json();
    if (response.ok) open(result.columns);
    else $("error").textContent = result.error;
  } catch {
    $("error").textContent = "The server does not respond. Is babn serve still running?";
  } finally {
    button.disabled = false;
    button.textContent = "Show attention";
  }
}

function fillForm({ text, second = "", relation = "compare" }) {
  $("text").value = text;
  $("second").value = second;
  $("relation").value = relation === "pair" ? "pair" : "compare";
}

function makeForm() {
  $("request").hidden = false;
  $("limits").textContent = `at most ${DATA.limits.tokens} tokens`;
  $("text").maxLength = $("second").maxLength = DATA.limits.characters;
  $("request").addEventListener("submit", submit);
  $("examples").append(...EXAMPLES.map((example) => {
    const button = element("button", "example", example.name);
    button.type = "button";
    button.addEventListener("click", () => { fillForm(example); submit(); });
    return button;
  }));
  const address = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!address.text) return;
  fillForm(address);
  submit();
}

function start() {
  $("about").textContent = DATA.model;
  const byteNote = "Numbers are rounded to one byte: weights are accurate to 0.4 percentage points, and finer when small.";
  $("footer").append(element("p", "", `Written by babn ${DATA.version} with seed ${DATA.seed}. ${byteNote}`));
  listenToControls();
  if (DATA.limits) makeForm();
  open(DATA.columns);
}

start();
