// Asks the server for the state again and again, and shows it.
const kInterval = 1000;
const kGrave = new Set(['deadlock', 'unresponsive', 'lost']);
const token = new URLSearchParams(location.search).get('token') ?? '';

const graph = new Graph();
const callsTable = new Table(byId('calls'), [['function', 'name'], ['at', ''], ['called by', ''], ['stage', ''], ['since', 'number'],
                             ['deadline in', 'number']], 'No call is open.');
const groupsTable = new Table(byId('groups'), [['group', 'name'], ['rank', 'number'], ['worker', ''], ['operation', ''], ['number', 'number'],
                              ['state', ''], ['since', 'number']], 'No process group has an operation.');
const passesTable = new Table(byId('passes'), [['pass', 'name'], ['began', ''], ['seen for', 'number'], ['state', ''], ['workers', '']],
                              'No backward pass was seen in progress.');
const workersTable = new Table(byId('workers'), [['rank', 'number'], ['worker', 'name'], ['host', ''], ['process', 'number'], ['state', ''],
                               ['up', 'number'], ['calls made', 'number'], ['served', 'number'], ['p50', 'number'], ['p99', 'number'],
                               ['memory', 'number'], ['RRefs', 'number']], 'No worker is known.', true);

function showFindings(findings) {
  const nodes = findings.map((finding) => {
    const lines = finding.details ?? [];
    return html('li', {class: kGrave.has(finding.kind) ? 'grave' : '', 'data-kind': finding.kind},
        finding.title,
        ...(lines.length > 0 ? [html('pre', {}, lines.join('\n'))] : []));
  });
  if (nodes.length === 0) nodes.push(html('li', {class: 'none'}, 'No problem was found.'));
  byId('findings').replaceChildren(...nodes);
}

function showCalls(chains) {
  const rows = [];
  for (const chain of chains) {
    chain.forEach((call, depth) => rows.push({
      depth, className: depth + 1 < chain.length ? 'inner' : '',
      cells: [call.callee, call.worker, call.caller, call.stage.toLowerCase().replaceAll('_', ' '), timeText(call.age_s),
              call.left_s === null ? 'none' : timeText(call.left_s)]}));
  }
  callsTable.show(rows);
}

// "group \"NAME\", rank R of N" as [name, rank]. Names may have anything in them.
function splitTitle(title) {
  const at = title.lastIndexOf('", rank ');
  if (!title.startsWith('group "') || at < 7) return [title, NaN];
  return [title.slice(7, at), parseInt(title.slice(at + 8), 10)];
}

function showGroups(workers, findings) {
  const ends = [];
  for (const worker of workers) {
    for (const group of worker.groups ?? []) {
      const [name, rank] = splitTitle(group.title);
      ends.push({name, rank, worker: worker.name, open: group.oldest_open, operation: group.oldest_open ?? group.last});
    }
  }
  // The operation for which a rank waits longest; ranks whose last one is an earlier one are late.
  const late = new Set(findings.filter((each) => each.kind === 'late_rank').flatMap((each) => each.culprits ?? []));
  const waited = new Map();
  for (const end of ends) if (end.open) waited.set(end.name, Math.max(waited.get(end.name) ?? -1, end.open.sequence));
  ends.sort((a, b) => a.name.localeCompare(b.name) || a.rank - b.rank);
  groupsTable.show(ends.map((end) => {
    const is_late = late.has(end.worker) && (end.operation?.sequence ?? -1) < (waited.get(end.name) ?? -1);
    return {className: is_late ? 'bad' : '', cells: [end.name, Number.isNaN(end.rank) ? '' : String(end.rank), end.worker,
        end.operation?.operation ?? 'none', end.operation ? String(end.operation.sequence) : '',
        is_late ? 'late' : (end.operation?.state ?? '').toLowerCase(), timeText(end.operation?.age_s)]};
  }));
}

function showWorkers(workers) {
  workersTable.show(workers.map((worker) => {
    const numbers = worker.statistics ?? {};
    const number = (value) => ({text: value === undefined ? '\u2013' : String(value), value: value ?? -1});
    const time = (value) => ({text: timeText(value), value: value ?? -1});
    // Without calls they are 0.
    const latency = (value) => time(value > 0 ? value / 1e6 : undefined);
    const state = worker.standing !== 'member' ? `${worker.standing}${worker.reason ? ': ' + worker.reason : ''}`
        : worker.answered ? 'member' : `no answer: ${worker.error ?? ''}`;
    return {className: state === 'member' ? '' : 'bad', cells: [number(worker.id), worker.name, worker.host ?? '', number(worker.pid),
        shorten(state, 60), time(worker.uptime_s), number(numbers.calls_made), number(numbers.calls_served), latency(numbers.call_p50_us),
        latency(numbers.call_p99_us),
        {text: numbers.resident_bytes === undefined ? '\u2013' : bytesText(numbers.resident_bytes), value: numbers.resident_bytes ?? -1},
        number(worker.rrefs_total)]};
  }));
}

function show(state) {
  const reading = byId('reading');
  const problem = state.status || '';
  reading.className = problem ? 'bad' : '';
  const report = state.report;
  const now = report ? Date.parse(report.time) / 1000 : 0;
  setText(reading, [report ? `read at ${clockText(now)}` : '', state.protection ? `connections: ${state.protection}` : '', problem].filter((each) => each).join(' \u00b7 '));
  if (!report) {
    setText(byId('summary'), 'The job has not been read yet.');
    return;
  }
  setText(byId('group'), report.group);
  setText(byId('summary'), state.summary);
  document.title = `${report.findings.length > 0 ? `(${report.findings.length}) ` : ''}${report.group} \u2013 Gradwire`;
  showFindings(report.findings);
  graph.show(report, state.protection);
  showLatency(state.samples);
  showCalls(state.calls);
  showGroups(report.workers, report.findings);
  showPass(state.pass, state.passes, state.flight_status);
  passesTable.show([...state.passes].reverse().map((pass) => ({cells: [`${pass.root}/${pass.number}`, clockText(pass.began), timeText(pass.took_s),
      pass.in_progress ? 'in progress' : 'ended', pass.workers.join(', ')]})));
  showLives(state.lives, state.restarts, now);
  showWorkers(report.workers);
}

async function refresh() {
  let wait = kInterval;
  try {
    if (!document.hidden) {
      const answer = await fetch('data', {headers: {'X-Gradwire-Token': token}, cache: 'no-store'});
      if (!answer.ok) throw new Error(`the server refused: ${answer.status}`);
      show(await answer.json());
    }
  } catch (error) {
    byId('reading').className = 'bad';
    setText(byId('reading'), `not up to date: ${error.message}`);
    wait = 5 * kInterval;
  }
  setTimeout(refresh, wait);
}
refresh();
