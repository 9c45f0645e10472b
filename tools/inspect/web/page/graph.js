// Workers as nodes on an ellipse, and traffic as edges with dots that move with the throughput.
class Graph {
  constructor() {
    this.node = byId('graph');
    this.shape = '';
    this.nodes = new Map();
    this.edges = new Map();
  }

  static kMost = 24;

  static stateOf(worker, suspects) {
    if (worker.standing !== 'member') return 'gone';
    if (!worker.answered) return 'silent';
    return suspects.has(worker.name) ? 'suspect' : 'member';
  }

  // The connections between two workers, with the bytes per second in both directions.
  static links(workers, isSecured) {
    const names = new Set(workers.map((worker) => worker.name));
    const links = new Map();
    for (const worker of workers) {
      for (const peer of worker.peers ?? []) {
        if (peer.name === worker.name || !names.has(peer.name)) continue;
        const used = (peer.links ?? []).find((link) => link.in_use) ?? (peer.links ?? [])[0];
        if (used === undefined) continue;
        const [a, b] = [worker.name, peer.name].sort();
        const key = JSON.stringify([a, b]);
        const link = links.get(key) ?? {a, b, transports: new Set(), forward: 0, back: 0};
        link.transports.add(used.transport);
        const sent = peer.sent_bytes_per_s ?? 0;
        if (worker.name === a) link.forward = Math.max(link.forward, sent);
        else link.back = Math.max(link.back, sent);
        const received = peer.received_bytes_per_s ?? 0;
        if (worker.name === a) link.back = Math.max(link.back, received);
        else link.forward = Math.max(link.forward, received);
        links.set(key, link);
      }
    }
    for (const link of links.values()) {
      link.name = [...link.transports].sort().join(', ');
      link.kind = link.name === 'shm' ? 'shm' : link.name.includes('tcp') ? (isSecured ? 'secure' : 'tcp') : 'other';
      if (link.kind === 'secure') link.name += ', secured';
    }
    return links;
  }

  static speed(bytes) { return bytes < 1 ? 0 : bytes < 64e3 ? 1 : bytes < 4e6 ? 2 : bytes < 256e6 ? 3 : 4; }

  show(report, protection) {
    const all = report.workers;
    const workers = all.slice(0, Graph.kMost);
    const suspects = new Set();
    for (const worker of all) {
      for (const peer of worker.peers ?? []) if (peer.state === 'SUSPECT') suspects.add(peer.name);
    }
    const isSecured = protection === 'token' || protection === 'certificates';
    setText(byId('secure-key'), isSecured ? `tcp, secured by ${protection === 'token' ? 'a token' : protection}` : 'tcp, secured');
    setText(byId('graph-note'), all.length > workers.length ? `${all.length - workers.length} more in the table below` : '');
    const links = Graph.links(workers, isSecured);
    const shape = JSON.stringify([workers.map((each) => [each.name, each.incarnation]), [...links.keys()]]);
    if (shape !== this.shape) this.draw(workers, links);
    this.shape = shape;
    for (const worker of workers) {
      const node = this.nodes.get(worker.incarnation);
      const state = Graph.stateOf(worker, suspects);
      setAttribute(node.group, 'class', `node ${state}`);
      setText(node.name, shorten(worker.name, 16));
      setText(node.place, shorten(`rank ${worker.id}${worker.host ? ', ' + worker.host : ''}`, 24));
      setText(node.title, `${worker.name}: ${state}`);
      setText(node.mark, state === 'member' ? '' : state === 'gone' ? '\u2715' : state === 'silent' ? '?' : '!');
    }
    for (const [key, link] of links) {
      const edge = this.edges.get(key);
      const total = link.forward + link.back;
      setAttribute(edge.line, 'class', `edge ${link.kind} ${total >= 1 ? 'busy' : ''}`);
      setAttribute(edge.there, 'class', `flow ${link.kind} s${Graph.speed(link.forward)}`);
      setAttribute(edge.back, 'class', `flow ${link.kind} s${Graph.speed(link.back)}`);
      setText(edge.label, `${shorten(link.name, 20)} ${bytesText(total)}/s`);
      setText(edge.title, `${link.a} to ${link.b}: ${bytesText(link.forward)}/s, back ${bytesText(link.back)}/s, ${link.name}`);
      setAttribute(edge.label, 'class', `label soft halo${total >= 1 ? '' : ' idle'}`);
    }
  }

  draw(workers, links) {
    this.nodes.clear();
    this.edges.clear();
    const lines = svg('g'), flows = svg('g'), labels = svg('g'), circles = svg('g');
    const places = new Map();
    workers.forEach((worker, i) => {
      const angle = Math.PI * (2 * i / workers.length - 1);
      const x = workers.length === 1 ? 320 : 320 + 196 * Math.cos(angle);
      const y = workers.length === 1 ? 190 : 198 + 138 * Math.sin(angle);
      if (!places.has(worker.name)) places.set(worker.name, [x, y]);
      // The text is outside of the ellipse, where no edges are.
      const side = workers.length === 1 ? 0 : Math.cos(angle), up = workers.length > 1 && Math.sin(angle) < -0.2;
      const anchor = Math.abs(side) > 0.9 ? (side < 0 ? 'end' : 'start') : 'middle';
      const dx = anchor === 'middle' ? 0 : side < 0 ? -20 : 20, dy = anchor !== 'middle' ? -2 : up ? -34 : 31;
      const node = {name: svg('text', {x: dx, y: dy, 'text-anchor': anchor, class: 'halo'}),
                    place: svg('text', {x: dx, y: dy + 14, 'text-anchor': anchor, class: 'soft halo'}),
                    title: svg('title'), mark: svg('text', {y: 5, 'text-anchor': 'middle'})};
      node.group = svg('g', {transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, 'data-worker': worker.name},
                       node.title, svg('circle', {r: 14}), node.mark, node.name, node.place);
      circles.append(node.group);
      this.nodes.set(worker.incarnation, node);
    });
    for (const [key, link] of links) {
      const [x1, y1] = places.get(link.a), [x2, y2] = places.get(link.b);
      // The curves bend to their right, so that the two directions lie side by side.
      const curve = (ax, ay, bx, by) => {
        const length = Math.hypot(bx - ax, by - ay) || 1;
        const cx = (ax + bx) / 2 + 14 * (ay - by) / length, cy = (ay + by) / 2 + 14 * (bx - ax) / length;
        return `M${ax.toFixed(1)} ${ay.toFixed(1)}Q${cx.toFixed(1)} ${cy.toFixed(1)} ${bx.toFixed(1)} ${by.toFixed(1)}`;
      };
      const edge = {line: svg('path', {d: `M${x1.toFixed(1)} ${y1.toFixed(1)}L${x2.toFixed(1)} ${y2.toFixed(1)}`}), there: svg('path', {d: curve(x1, y1, x2, y2)}),
                    back: svg('path', {d: curve(x2, y2, x1, y1)}), title: svg('title'),
                    label: svg('text', {class: 'label soft halo', x: (x1 * 0.62 + x2 * 0.38).toFixed(1), y: (y1 * 0.62 + y2 * 0.38 - 4).toFixed(1)})};
      edge.line.append(edge.title);
      edge.line.setAttribute('data-link', `${link.a} ${link.b}`);
      lines.append(edge.line);
      flows.append(edge.there, edge.back);
      if (links.size <= 15) labels.append(edge.label);
      this.edges.set(key, edge);
    }
    this.node.replaceChildren(lines, flows, circles, labels);
  }
}
