// Charts over time, and bars of passes and of the workers' lives.

// A line over time. `values` are numbers, or null where the line has a gap.
function linePath(samples, value, x, y) {
  let path = '', open = false;
  for (const sample of samples) {
    const v = value(sample);
    if (v === null) { open = false; continue; }
    path += `${open ? 'L' : 'M'}${x(sample.time).toFixed(1)} ${y(v).toFixed(1)}`;
    // A lone point is a short line.
    if (!open) path += 'h0.8';
    open = true;
  }
  return path;
}

const kSpan = 300;  // Seconds.

function timeAxis(now, height) {
  const x = (time) => 52 + (time - now + kSpan) / kSpan * 578;
  const marks = [];
  for (let ago = 0; ago <= kSpan; ago += 60) {
    marks.push(svg('line', {class: 'grid', x1: x(now - ago), x2: x(now - ago), y1: 8, y2: height - 20}),
               svg('text', {class: 'soft label', x: Math.min(x(now - ago), 622), y: height - 5}, ago === 0 ? 'now' : `\u2212${ago / 60} min`));
  }
  return [x, marks];
}

function showLatency(samples) {
  const node = byId('latency');
  const now = samples.length > 0 ? samples[samples.length - 1].time : 0;
  const recent = samples.filter((sample) => sample.time > now - kSpan);
  const known = recent.filter((sample) => sample.p50_s !== null);
  const low = Math.floor(Math.log10(Math.min(1e-4, ...known.map((sample) => Math.max(sample.p50_s, 1e-6)))));
  const high = Math.max(low + 2, Math.ceil(Math.log10(Math.max(1e-3, ...known.map((sample) => sample.p99_s)))));
  const y = (seconds) => 220 - (Math.log10(Math.max(seconds, 10 ** low)) - low) / (high - low) * 208;
  const [x, marks] = timeAxis(now, 240);
  for (let power = low; power <= high; ++power) {
    marks.push(svg('line', {class: 'grid', x1: 52, x2: 630, y1: y(10 ** power), y2: y(10 ** power)}),
               svg('text', {class: 'soft', x: 2, y: y(10 ** power) + 4}, timeText(10 ** power).replace('.0', '')));
  }
  node.replaceChildren(...marks,
      svg('path', {class: 'line p50', d: linePath(recent, (sample) => sample.p50_s, x, y)}),
      svg('path', {class: 'line p99', d: linePath(recent, (sample) => sample.p99_s, x, y)}));
  const last = known[known.length - 1];
  setText(byId('latency-now'), last === undefined ? 'no calls have ended yet'
      : `now: half of the calls take at most ${timeText(last.p50_s)}, 99 % at most ${timeText(last.p99_s)}`);

  const rates = byId('traffic');
  const most = Math.max(1, ...recent.map((sample) => sample.calls_per_s));
  const [rx, rmarks] = timeAxis(now, 110);
  const ry = (value) => 90 - value / most * 78;
  rates.replaceChildren(...rmarks,
      svg('text', {class: 'soft', x: 2, y: 16}, most < 10 ? most.toFixed(1) : most.toFixed(0)), svg('text', {class: 'soft', x: 2, y: 92}, '0'),
      svg('path', {class: 'line rate', d: linePath(recent, (sample) => sample.calls_per_s, rx, ry)}));
  const newest = recent[recent.length - 1];
  setText(byId('traffic-now'), newest === undefined ? '' :
      `now: ${newest.calls_per_s.toFixed(newest.calls_per_s < 10 ? 1 : 0)}, ${bytesText(newest.bytes_per_s)}/s sent`);
}

// Bars in rows with a name. `rows`: [{name, bars: [{begin, end, kind, title}]}]. Returns the height.
function drawBars(node, rows, width, low, high, below, labelWidth, row) {
  const x = (value) => labelWidth + (value - low) / (high - low || 1) * (width - labelWidth - 10);
  const parts = rows.map((each, i) => svg('g', {transform: `translate(0 ${4 + i * row})`},
      svg('text', {x: 2, y: row * 0.62, class: 'bar-name'}, svg('title', {}, each.name), shorten(each.name, 16)),
      ...each.bars.map((bar) => svg('rect', {class: `bar ${bar.kind}`, x: x(bar.begin).toFixed(1), y: row * 0.15 + (bar.kind === 'path' ? row * 0.15 : 0),
          width: Math.max(1.5, x(bar.end) - x(bar.begin)).toFixed(1), height: row * (bar.kind === 'path' ? 0.4 : 0.7), rx: 2},
          svg('title', {}, bar.title)))));
  const height = 4 + rows.length * row;
  node.replaceChildren(...parts, ...below(x, height));
}

function showPass(pass, passes, status) {
  const node = byId('pass');
  setAttribute(node, 'class', pass === null ? 'none' : '');
  if (pass === null) {
    const open = passes.filter((each) => each.in_progress).length;
    setText(byId('pass-text'), `${open === 0 ? 'No pass is in progress.' : `${open} in progress.`} ` +
        `The critical path needs flight records (--flight)${status ? ': ' + status : ''}.`);
    node.replaceChildren();
    return;
  }
  const names = [];
  for (const part of [...pass.parts, ...pass.path]) if (!names.includes(part.worker)) names.push(part.worker);
  const rows = names.slice(0, 8).map((name) => ({name, bars: [
    ...pass.parts.filter((part) => part.worker === name).map((part) => ({begin: part.begin_s, end: part.end_s, kind: 'part',
        title: `${name}: ${timeText(part.end_s - part.begin_s)}, ${part.result || 'not ended'}`})),
    ...pass.path.filter((part) => part.worker === name).map((part) => ({begin: part.begin_s, end: part.end_s, kind: 'path',
        title: `critical path: ${name}, ${timeText(part.end_s - part.begin_s)}`}))]}));
  drawBars(node, rows, 640, Math.min(0, ...pass.parts.map((part) => part.begin_s)), Math.max(pass.total_s, ...pass.parts.map((part) => part.end_s)),
      () => [], 130, Math.min(24, 172 / rows.length));
  const shares = new Map();
  for (const part of pass.path) shares.set(part.worker, (shares.get(part.worker) ?? 0) + part.end_s - part.begin_s);
  const text = [...shares].sort((a, b) => b[1] - a[1])
      .map(([name, time]) => `${name} ${timeText(time)} (${(100 * time / (pass.total_s || 1)).toFixed(0)} %)`).join(', ');
  setText(byId('pass-text'), `Pass ${pass.root}/${pass.number} took ${timeText(pass.total_s)}. Critical path: ${text || 'empty'}. ` +
      (pass.error_s === null ? 'The clocks of the workers are not known.' : `The clocks differ by at most ${timeText(pass.error_s)}.`));
}

function showLives(lives, restarts, now) {
  const names = [];
  for (const life of lives) if (!names.includes(life.name)) names.push(life.name);
  const shown = names.slice(0, 16);
  const begin = Math.min(now - 60, ...lives.map((life) => life.began));
  const rows = shown.map((name) => ({name, bars: lives.filter((life) => life.name === name).map((life) => ({
    begin: life.began, end: life.ended ?? now, kind: life.ended === null ? 'life' : life.how === 'dead' ? 'dead' : 'ended',
    title: `${name}: ${clockText(life.began)} to ${life.ended === null ? 'now' : clockText(life.ended) + ', ' + life.how}`}))}));
  const height = Math.max(80, 40 + rows.length * 24);
  setAttribute(byId('lives'), 'viewBox', `0 0 1280 ${height}`);
  drawBars(byId('lives'), rows, 1280, begin, now, (x, bottom) => [
    ...restarts.filter((time) => time >= begin).map((time) => svg('line', {class: 'restart', x1: x(time), x2: x(time), y1: 0, y2: bottom},
        svg('title', {}, `restart at ${clockText(time)}`))),
    svg('text', {class: 'soft', x: 150, y: bottom + 22}, clockText(begin)), svg('text', {class: 'soft end', x: 1270, y: bottom + 22}, clockText(now)),
  ], 150, 24);
  const dead = lives.filter((life) => life.how === 'dead').length;
  setText(byId('lives-text'), `${restarts.length} ${restarts.length === 1 ? 'restart' : 'restarts'} and ${dead} ` +
      `${dead === 1 ? 'loss' : 'losses'} since this page's server began` +
      (names.length > shown.length ? `; ${names.length - shown.length} more workers are not shown` : '') + '.');
}
