// Shows what the daemon says, each second. Names of files are put in as text alone.
"use strict";

const at = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function rate(bits) { return `${bits < 1e7 ? (bits / 1e6).toFixed(1) : Math.round(bits / 1e6)} Mbit/s`; }

function time(microseconds) {
  const size = Math.abs(microseconds), sign = microseconds < 0 ? "−" : "";
  if (size < 1e4) return `${sign}${(size / 1e3).toFixed(1)} ms`;
  if (size < 1e6) return `${sign}${Math.round(size / 1e3)} ms`;
  return `${sign}${(size / 1e6).toFixed(1)} s`;
}

function duration(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

function list(id, pairs) {
  const parts = [];
  for (const [name, value] of pairs) parts.push(element("dt", "", name), element("dd", "", value));
  at(id).replaceChildren(...parts);
}

// What is ahead of a player in seconds, or else the slack of its last request: both say how long it bears without the disk.
function spare(stream) {
  if (!stream.writes && stream.ahead_microseconds > 0) return stream.ahead_microseconds;
  return stream.slack_microseconds === null || stream.slack_microseconds === undefined ? 0 : stream.slack_microseconds;
}

// By default a client asks for bytes so long before it shows them, in microseconds.
const SOON = 5e5;

// A full bar. It grows with the most that there was to spare, so that bars can be compared.
let longest = 1e6;
const rows = new Map();

function showStreams(report) {
  const seen = new Set();
  longest = Math.max(1e6, longest * 0.995, ...report.streams.map(spare));
  for (const stream of report.streams) {
    const key = `${stream.ino} ${stream.writes} ${stream.sequence || ""}`;
    seen.add(key);
    let row = rows.get(key);
    if (!row) {
      row = { li: element("li"), path: element("div", "path"), more: element("div", "more"), bar: element("div", "bar"),
        fill: element("i"), figure: element("div", "figure"), why: element("div", "why") };
      row.bar.append(row.fill);
      row.bar.setAttribute("role", "meter");
      row.li.append(row.path, row.bar, row.figure, row.more, row.why);
      rows.set(key, row);
      at("streams").append(row.li);
    }
    const left = spare(stream), part = Math.max(0, Math.min(1, left / longest));
    const slack = stream.slack_microseconds;
    const level = stream.state !== "admitted" && stream.state !== "paused" ? "bad"
      : slack !== null && slack !== undefined && slack < 0 ? "bad" : left < SOON && stream.state === "admitted" ? "warn" : "";
    const path = stream.path || `inode ${stream.ino}`, cut = path.lastIndexOf("/") + 1;
    row.path.textContent = path.slice(cut);
    row.path.title = path;
    const first = stream.clients[0];
    const client = first ? `${first.name || "process"}[${first.process}]${stream.clients.length > 1 ? ` and ${stream.clients.length - 1} more` : ""}` : "no client";
    const silent = stream.silent_microseconds > 2e6 ? `, silent for ${time(stream.silent_microseconds)}` : "";
    row.more.title = path;
    row.more.textContent = `${cut > 1 ? `${path.slice(0, cut)}, ` : ""}${stream.writes ? "recorded" : "played"} at ${rate(stream.bits_per_second)} by ${client}`;
    row.bar.className = `bar ${level}`;
    row.fill.style.transform = `scaleX(${Math.max(part, 0.005)})`;
    row.bar.setAttribute("aria-label", "time to spare");
    row.bar.setAttribute("aria-valuetext", time(left));
    row.figure.textContent = time(left);
    const late = stream.missed > 0 ? `; ${stream.missed} late, by ${time(stream.tardiness_microseconds)} at most` : "";
    row.why.textContent = `${stream.reason || stream.state}${silent}${late}`;
    row.why.title = row.why.textContent;
    row.why.className = `why ${stream.missed > 0 && level !== "bad" ? "warn" : level}`;
  }
  for (const [key, row] of rows) if (!seen.has(key)) { row.li.remove(); rows.delete(key); }
  at("streams-none").hidden = report.streams.length > 0;
  at("streams-count").textContent = report.streams.length > 0 ? `${report.streams.length}` : "";
  at("room").textContent = report.room.map((room) =>
    `Room for ${room.more}${room.or_more ? " or more" : ""} more of ${rate(room.bits_per_second)}.`).join(" ");
}

let before = null;

function showDevice(report, info) {
  const device = report.device, pairs = [];
  if (before && report.clock_microseconds > before.clock_microseconds) {
    const passed = report.clock_microseconds - before.clock_microseconds;
    const each = (name) => Math.max(0, device[name] - before.device[name]) * 1e6 / passed;
    pairs.push(["busy", `${Math.min(100, Math.round(each("busy_microseconds") / 1e4))} %`],
      ["read", `${bytes(each("read_bytes"))}/s`], ["written", `${bytes(each("written_bytes"))}/s`]);
    const commands = each("commands");
    if (commands > 0) pairs.push(["mean command", bytes((each("read_bytes") + each("written_bytes")) / commands)]);
  }
  before = report;
  pairs.push(["promised to streams", `${(device.promised_permille / 10).toFixed(1)} %`],
    ["waiting, at the device", `${device.queued}, ${device.in_flight}`]);
  const read = info.device && info.device.services.find((service) => service.operation === "read");
  if (read) {
    pairs.push(["a read takes", `${(read.now.access_nanoseconds / 1e6).toFixed(1)} ms, then ${Math.round(read.now.bytes_per_second / 1e6)} MB/s`],
      ["known from", read.origin === "measured" ? "a measurement" : "a default, learned since"]);
  }
  list("device", pairs);
}

function showVolume(info, free) {
  const volume = info.volume;
  document.title = `${volume.label || volume.uuid} – AVFS`;
  at("name").textContent = volume.label || volume.uuid;
  at("about").textContent = `${info.mounted_on || "mounted nowhere"}, ${info.device_path || ""}, for ${duration(info.uptime_seconds)}, AVFS ${info.version}`;
  const [word, level] = volume.failure ? [`refuses writes: ${volume.failure}`, "bad"]
    : volume.losses > 0 ? ["data was lost", "bad"] : !info.connected ? ["being unmounted", "warn"]
    : volume.read_only ? ["read-only", "good"] : ["serving", "good"];
  at("state").textContent = word;
  at("state").className = `state ${level}`;
  const pairs = [["free", `${bytes(volume.free_bytes)} of ${bytes(volume.device_bytes)}`],
    ["longest free run", bytes(volume.longest_free_run_bytes)],
    ["to be written", bytes(volume.dirty_bytes + volume.writing_bytes)],
    ["cache", `${bytes(volume.cache_used_bytes)} used, ${bytes(volume.cache_taken_bytes)} taken of at most ${bytes(volume.cache_bytes)}`],
    ["ahead of players", bytes(volume.prefetched_bytes)]];
  if (free && free.long.end_in_hours !== null) pairs.splice(2, 0, ["long runs last", duration(free.long.end_in_hours * 3600)]);
  list("memory", pairs);
}

function showHour(history) {
  const points = history.points, width = 720, height = 150, step = width / 360;
  const x = (index) => width - (points.length - 1 - index) * step;
  const y = (permille) => height - permille * height / 1000;
  const shape = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    return made;
  };
  const parts = [];
  if (points.length > 1) {
    const line = (of) => points.map((point, index) => `${x(index).toFixed(1)},${y(of(point)).toFixed(1)}`).join(" ");
    parts.push(shape("polygon", { class: "busy", points: `${x(0)},${height} ${line((p) => p.busy_permille)} ${width},${height}` }),
      shape("polyline", { class: "promised", points: line((p) => p.promised_permille) }));
  }
  points.forEach((point, index) => {
    if (point.late > 0) parts.push(shape("line", { class: "late", x1: x(index), x2: x(index), y1: 0, y2: height }));
  });
  at("hour").replaceChildren(...parts);
}

function showEvents(events) {
  const level = { late: "bad", error: "bad", refused: "warn", demoted: "bad", device_slower: "warn" };
  const items = events.slice(-20).reverse().map((event) => {
    const li = element("li"), when = element("time", "", new Date(event.at_milliseconds).toTimeString().slice(0, 8));
    const isQuiet = event.kind === "late" && !event.is_noticed;
    when.title = new Date(event.at_milliseconds).toLocaleString();
    li.append(when, element("p", isQuiet ? "" : level[event.kind] || "", event.sentence));
    return li;
  });
  at("events").replaceChildren(...items);
  at("events-none").hidden = items.length > 0;
}

async function ask(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

let turn = 0, free = null;

async function show() {
  try {
    const [info, streams, events] = await Promise.all(
      ["api/v1/info", "api/v1/streams", "api/v1/events?most=20"].map(ask));
    if (turn % 60 === 0) free = await ask("api/v1/free-space");
    showVolume(info, free);
    showDevice(streams, info);
    showStreams(streams);
    showEvents(events);
    if (turn % 5 === 0) showHour(await ask("api/v1/history"));
    turn += 1;
  } catch (error) {
    at("state").textContent = "the daemon does not answer";
    at("state").className = "state bad";
  }
  setTimeout(show, 1000);
}

show();
