// The live page: the tables as they stand, and one shape as it changes. Values become text and never anything else.

const ROWS = 200; // rows of a shape that are shown
const LOOK = 3_000; // ms between two looks at the tables
const PATIENCE = 90_000; // ms after which an answer is not waited for any more
const LONGEST = 500; // characters of a value that are shown
const FADE = 1_400; // ms that a deleted row takes to go
const MANY = 20_000; // changes that are kept back until their end is told

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const NUMBERS = new Set(["int2", "int4", "int8", "float4", "float8", "numeric"]);

function element(name, text, ...classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  made.classList.add(...classes);
  return made;
}

function say(place, state, text) {
  if (place.dataset.state !== state) place.dataset.state = state;
  if (place.textContent !== text) place.textContent = text;
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

// Asking

class Refused extends Error {
  constructor(status, told) {
    super(reasons(told?.errors).join("; ") || told?.message || `the server answers ${status}`);
    this.status = status;
  }
}

function reasons(errors, name = "") {
  if (typeof errors === "string") return [name ? `${name}: ${errors}` : errors];
  if (Array.isArray(errors)) return errors.flatMap((each) => reasons(each, name));
  return Object.entries(errors ?? {}).flatMap(([inner, each]) => reasons(each, name ? `${name}.${inner}` : inner));
}

let secret = kept();

/** The secret in this tab's storage, which a browser may refuse: then it is in memory alone. */
function kept(word) {
  try {
    if (word) sessionStorage.setItem("secret", word);
    else if (word === "") sessionStorage.removeItem("secret");
    return sessionStorage.getItem("secret") ?? "";
  } catch {
    return "";
  }
}

// A header carries bytes; those of UTF-8 are what the server reads.
const bytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/** The answer to a request. It is asked again for as long as the server is away or has too much to do. */
async function ask(path, query, signal, away) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
  for (let tries = 0; ; tries++) {
    let least = 0;
    try {
      const response = await fetch(url, {
        headers: secret ? { authorization: `Bearer ${bytes(secret)}` } : {},
        signal: AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]),
        cache: "no-store",
      });
      if (response.status < 500 && response.status !== 429) {
        const text = await response.text();
        const told = text ? JSON.parse(text) : [];
        if (response.ok || response.status === 409) return { status: response.status, headers: response.headers, told };
        throw new Refused(response.status, told);
      }
      least = 1_000 * Number(response.headers.get("retry-after"));
    } catch (error) {
      if (signal.aborted || error instanceof Refused) throw error;
    }
    away();
    await pause(Math.max(least, Math.min(32_000, 1_000 * 2 ** tries) * (0.5 + Math.random() / 2)), signal);
  }
}

// Following a shape

/**
 * A shape from now on: first `{schema, rows, more}`, then lists of changes, each up to where the server was up to date.
 * When it must begin anew it does, with `{schema, rows, more}` again.
 */
async function* follow(definition, signal, away) {
  const get = (query) => ask("v1/shape", { ...definition, ...query, log: "changes_only", replica: "full" }, signal, away);
  for (let expired; ; ) {
    const begun = await get({ offset: "now", expired_handle: expired });
    let { handle, offset, cursor } = place(begun.headers);
    const schema = JSON.parse(begun.headers.get("electric-schema"));
    const found = await get({ offset, handle, subset__order_by: order(schema), subset__limit: String(ROWS + 1) });
    let anew = found.status === 409;
    if (!anew) yield { schema, rows: found.told.data.slice(0, ROWS), more: found.told.data.length > ROWS };
    const seen = anew ? 0n : BigInt(found.told.metadata.database_lsn);
    let changes = [];
    for (let live = true; !anew; ) {
      const answer = await get({ offset, handle, cursor, live: live ? "true" : "" });
      anew = answer.status === 409;
      for (const message of answer.told) {
        if (message.headers.control === "must-refetch") anew = true;
        // What was committed before the rows were read is in them.
        else if (message.key !== undefined && BigInt(message.headers.lsn) >= seen) changes.push(message);
      }
      if (anew) break;
      ({ handle, offset, cursor } = place(answer.headers));
      live = answer.headers.has("electric-up-to-date");
      if (live || changes.length > MANY) {
        yield { changes };
        changes = [];
      }
    }
    expired = handle;
  }
}

function place(headers) {
  return {
    handle: headers.get("electric-handle"),
    offset: headers.get("electric-offset"),
    cursor: headers.get("electric-cursor") ?? "",
  };
}

function order(schema) {
  const key = Object.entries(schema).filter(([, { pk_index }]) => pk_index !== undefined);
  key.sort(([, one], [, other]) => one.pk_index - other.pk_index);
  return key.map(([name]) => `"${name.replaceAll('"', '""')}"`).join(", ");
}

// The live view

const NONE = { insert: 0, update: 0, delete: 0 };

class View {
  constructor(table, where) {
    this.table = table;
    this.where = where;
    this.ending = new AbortController();
    this.counts = { ...NONE };
    this.unsaid = { ...NONE };
    this.rows = new Map();
    this.marked = [];
    at("shape-title").textContent = table;
    at("where").value = where;
    at("problem").textContent = at("tally").textContent = at("note").textContent = "";
    at("code").textContent = code(table, where);
    at("rows").tHead.replaceChildren();
    at("rows").tBodies[0].replaceChildren();
    this.run();
  }

  end() {
    this.ending.abort();
    clearTimeout(this.saying);
  }

  async run() {
    const state = at("live-state");
    say(state, "busy", "Reading");
    const away = () => say(state, "busy", "The server does not answer: trying again");
    try {
      for (;;) {
        for await (const told of follow({ table: this.table, where: this.where }, this.ending.signal, away)) {
          if (told.schema) this.begin(told);
          else if (told.changes.length) this.change(told.changes);
          say(state, "good", "Live");
          this.tell();
          // All that was shown is deleted, but the table is not empty.
          if (this.more && !this.rows.size) break;
        }
      }
    } catch (error) {
      if (this.ending.signal.aborted) return;
      say(state, "bad", "Stopped");
      if (error.status === 401) locked(error);
      else at("problem").textContent = error.message;
    }
  }

  begin({ schema, rows, more }) {
    this.columns = Object.entries(schema).map(([name, { type }]) => ({ name, type }));
    this.more = more;
    this.rows.clear();
    this.marked = [];
    const head = element("tr");
    for (const { name, type } of this.columns) {
      const cell = element("th", name, ...(NUMBERS.has(type) ? ["number"] : []));
      cell.scope = "col";
      cell.append(element("small", type));
      head.append(cell);
    }
    at("rows").tHead.replaceChildren(head);
    at("rows").tBodies[0].replaceChildren(...rows.map((message) => this.row(message)));
  }

  row({ key, value }) {
    const row = element("tr");
    row.dataset.key = key;
    for (const { name, type } of this.columns) {
      const cell = element("td", undefined, ...(NUMBERS.has(type) ? ["number"] : []));
      cell.dataset.column = name;
      if (Object.hasOwn(value, name)) fill(cell, value[name]);
      row.append(cell);
    }
    this.rows.set(key, { row, value });
    return row;
  }

  /** Rows that are shown keep their places; others come on top. Of a row only its last change counts. */
  change(changes) {
    for (const each of this.marked) each.classList.remove("come", "changed");
    this.marked = [];
    const last = new Map();
    const counts = { ...NONE };
    for (const message of changes) {
      counts[message.headers.operation]++;
      last.delete(message.key);
      last.set(message.key, message);
    }
    const come = [];
    for (const [key, message] of last) {
      const shown = this.rows.get(key);
      if (message.headers.operation === "delete") this.remove(key, shown);
      else if (shown) this.update(shown, message.value);
      else come.push(message);
    }
    for (const message of come.slice(-ROWS)) {
      const row = this.row(message);
      row.classList.add("come");
      at("rows").tBodies[0].prepend(row);
      this.marked.push(row);
    }
    this.trim(come.length > ROWS);
    this.count(counts);
  }

  /** Adds to what is told; who listens hears of it now and then. */
  count(counts) {
    for (const word in counts) {
      this.counts[word] += counts[word];
      this.unsaid[word] += counts[word];
    }
    this.saying ??= setTimeout(() => {
      at("said").textContent = sentence(this.unsaid);
      this.unsaid = { ...NONE };
      this.saying = undefined;
    }, LOOK);
  }

  update(shown, value) {
    for (const cell of shown.row.cells) {
      const name = cell.dataset.column;
      if (!Object.hasOwn(value, name) || value[name] === shown.value[name]) continue;
      fill(cell, value[name]);
      cell.classList.add("changed");
      this.marked.push(cell);
    }
    shown.value = { ...shown.value, ...value };
  }

  remove(key, shown) {
    if (!shown) return;
    this.rows.delete(key);
    delete shown.row.dataset.key;
    shown.row.classList.add("gone");
    setTimeout(() => shown.row.remove(), FADE);
  }

  /** Takes away what is too much, from below. */
  trim(more) {
    this.more ||= more;
    const body = at("rows").tBodies[0];
    for (let row = body.lastElementChild; row && this.rows.size > ROWS; ) {
      const before = row.previousElementSibling;
      if (row.dataset.key !== undefined) {
        this.rows.delete(row.dataset.key);
        row.remove();
        this.more = true;
      }
      row = before;
    }
  }

  tell() {
    at("tally").textContent = `${sentence(this.counts) || "no changes"} since it was opened`;
    const shown = number.format(this.rows.size);
    const which = this.where ? "rows that meet the condition" : "rows";
    const all = this.where ? undefined : listed.get(this.table)?.told.rows;
    at("note").textContent = this.more
      ? `${shown}${all > this.rows.size ? ` of ${number.format(all)}` : ""} ${which} are shown, not all: ` +
        "the first by key, and on top those that came or changed since."
      : this.rows.size
        ? `All ${shown} ${which} are shown. What comes is on top.`
        : `There are no ${which}.`;
  }
}

function fill(cell, value) {
  cell.classList.toggle("null", value === null);
  cell.classList.toggle("empty", value === "");
  const long = value !== null && value.length > LONGEST;
  cell.textContent = long ? `${value.slice(0, LONGEST)}…` : (value ?? "");
  cell.title = long ? `${number.format(value.length)} characters` : value !== null && value.length > 30 ? value : "";
}

function sentence(counts) {
  const words = { insert: "inserted", update: "updated", delete: "deleted" };
  const told = Object.entries(words).filter(([word]) => counts[word]);
  return told.map(([word, done]) => `${number.format(counts[word])} ${done}`).join(", ");
}

function code(table, where) {
  const params = { table, ...(where && { where }), ...(secret && { secret: "…" }) };
  return [
    'import { Shape, ShapeStream } from "@electric-sql/client";',
    "",
    "const stream = new ShapeStream({",
    `  url: ${JSON.stringify(String(new URL("v1/shape", document.baseURI)))},`,
    `  params: ${JSON.stringify(params)},`,
    "});",
    "new Shape(stream).subscribe(({ rows }) => console.log(rows));",
  ].join("\n");
}

// The tables

const listed = new Map();
let clock = { now: 0, at: 0 };

function list({ now, tables, left_out }) {
  clock = { now: Date.parse(now), at: performance.now() };
  const names = new Set(tables.map(({ table }) => table));
  for (const [name, { row }] of listed) {
    if (names.has(name)) continue;
    row.remove();
    listed.delete(name);
  }
  tables.forEach((table, place) => {
    const known = listed.get(table.table) ?? add(table.table);
    const body = at("tables").tBodies[0];
    if (body.children[place] !== known.row) body.insertBefore(known.row, body.children[place] ?? null);
    if (known.told && known.told.version !== table.version) flash(known.rows);
    known.told = table;
    known.rows.textContent = table.rows === undefined ? "–" : number.format(table.rows);
    known.lag.textContent = table.lag_seconds == null ? "–" : lasting(table.lag_seconds);
    known.lag.title = table.batch == null ? "" : `batch ${table.batch}`;
    known.problem.textContent = table.problem ?? "";
  });
  at("filter-label").hidden = tables.length < 12;
  at("tables-note").textContent = !tables.length
    ? "There are no tables yet that may be asked for. Once the pipeline has filled one, it is here."
    : left_out
      ? `${number.format(left_out)} more tables are not listed; they can be asked for.`
      : "";
  ages();
  sift();
  current();
}

function add(name) {
  const row = element("tr");
  const head = element("th");
  const link = element("a", name);
  const known = { row, rows: element("td"), age: element("td"), lag: element("td"), problem: element("div") };
  head.scope = "row";
  link.href = `#${new URLSearchParams({ table: name })}`;
  known.problem.classList.add("problem");
  head.append(link, known.problem);
  for (const cell of [known.rows, known.age, known.lag]) cell.classList.add("number");
  row.append(head, known.rows, known.age, known.lag);
  listed.set(name, known);
  return known;
}

function flash(cell) {
  cell.classList.add("changed");
  setTimeout(() => cell.classList.remove("changed"), LOOK - 500);
}

function ages() {
  const now = clock.now + performance.now() - clock.at;
  for (const { told, age } of listed.values()) {
    const text = told.changed_at ? since((now - Date.parse(told.changed_at)) / 1_000) : "–";
    if (age.textContent !== text) age.textContent = text;
    age.title = told.changed_at ?? "";
  }
}

function since(seconds) {
  return seconds < 1 ? "now" : `${lasting(seconds)} ago`;
}

function lasting(seconds) {
  if (seconds < 1) return "< 1 s";
  const steps = [["s", 60], ["min", 60], ["h", 24], ["d", Infinity]];
  for (const [unit, most] of steps) {
    if (seconds < most) return `${Math.floor(seconds)} ${unit}`;
    seconds /= most;
  }
}

function sift() {
  const wanted = at("filter-label").hidden ? "" : at("filter").value.trim().toLowerCase();
  for (const [name, { row }] of listed) row.hidden = !name.toLowerCase().includes(wanted);
}

function current() {
  const chosen = asked().table;
  for (const [name, { row }] of listed) {
    if (name === chosen) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

// What is looked at: it stands in the address, and can be sent to others

let view;

function asked() {
  const words = new URLSearchParams(location.hash.slice(1));
  return { table: words.get("table") ?? "", where: words.get("where") ?? "" };
}

function open() {
  const { table, where } = asked();
  current();
  if (at("content").hidden) return;
  view?.end();
  view = table ? new View(table, where) : undefined;
  at("choose").hidden = Boolean(table);
  at("view").hidden = !table;
  if (!table) at("shape-title").textContent = "Live view";
  else if (matchMedia("(max-width: 64rem)").matches) at("live").scrollIntoView();
}

// Secret, and the look at the tables that goes on

let looking = new AbortController();

function locked(error) {
  looking.abort();
  view?.end();
  view = undefined;
  at("content").hidden = true;
  at("unlock").hidden = false;
  at("forget").hidden = true;
  at("unlock-problem").textContent = secret ? "That is not the secret of this server." : "";
  say(at("state"), "bad", error ? "Locked" : "Secret forgotten");
  keep("");
  at("secret").focus();
}

function keep(word) {
  secret = word;
  kept(word);
}

async function look() {
  looking = new AbortController();
  const { signal } = looking;
  const away = () => say(at("state"), "busy", "The server does not answer: trying again");
  try {
    for (;;) {
      if (!document.hidden) {
        const { told } = await ask("v1/tables", {}, signal, away);
        const first = at("content").hidden;
        at("unlock").hidden = true;
        at("content").hidden = false;
        at("forget").hidden = !secret;
        list(told);
        say(at("state"), "good", told.tables.length === 1 ? "1 table" : `${number.format(listed.size)} tables`);
        if (first) open();
      }
      await pause(LOOK, signal);
    }
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) locked(error);
    else say(at("state"), "bad", error.message);
  }
}

at("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(at("secret").value);
  at("secret").value = "";
  look();
});
at("forget").addEventListener("click", () => (keep(""), locked()));
at("condition").addEventListener("submit", (event) => {
  event.preventDefault();
  const where = at("where").value.trim();
  const wanted = `#${new URLSearchParams({ table: asked().table, ...(where && { where }) })}`;
  if (location.hash === wanted) open();
  else location.hash = wanted;
});
at("filter").addEventListener("input", sift);
// The address says which shape is looked at, and no place in the page.
document.querySelector(".skip").addEventListener("click", (event) => (event.preventDefault(), at("live").focus()));
addEventListener("hashchange", open);
setInterval(ages, 1_000);
look();
