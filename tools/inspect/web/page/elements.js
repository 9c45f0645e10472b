'use strict';
// All text of the job goes into the page through textContent and attributes, never as HTML.

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) node.setAttribute(name, value);
  }
  for (const child of children) node.append(child);
  return node;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const shorten = (text, most) => text.length <= most ? text : text.slice(0, most - 1) + '\u2026';

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return '\u2013';
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} \u00b5s`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
}
function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; ++unit; }
  return `${bytes.toFixed(unit === 0 || bytes >= 100 ? 0 : 1)} ${units[unit]}`;
}
const clockText = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

// A table whose rows are replaced at each reading. Its header stays, so that it keeps the focus. The columns
// are [title, kind]: 'name', 'number' or ''. A row has `cells`: texts, or {text, value}, where `value` sorts;
// and perhaps `className`, `depth` of its first cell, and `title`.
class Table {
  constructor(node, columns, empty, sortable = false) {
    this.columns = columns;
    this.empty = empty;
    this.sorted = -1;
    this.ascending = true;
    this.rows = [];
    this.heads = columns.map(([title, kind], i) => {
      const content = sortable ? html('button', {type: 'button'}, title) : title;
      if (sortable) content.addEventListener('click', () => this.sortBy(i));
      return html('th', {scope: 'col', class: kind === 'number' ? 'number' : ''}, content);
    });
    this.body = html('tbody');
    node.append(html('thead', {}, html('tr', {}, ...this.heads)), this.body);
  }
  sortBy(column) {
    this.ascending = this.sorted === column ? !this.ascending : true;
    this.sorted = column;
    this.heads.forEach((head, i) => {
      if (i !== column) head.removeAttribute('aria-sort');
      else head.setAttribute('aria-sort', this.ascending ? 'ascending' : 'descending');
    });
    this.show(this.rows);
  }
  show(rows) {
    this.rows = rows;
    let shown = rows;
    if (this.sorted >= 0) {
      const value = (row) => {
        const cell = row.cells[this.sorted];
        return typeof cell === 'object' ? cell.value : cell;
      };
      shown = [...rows].sort((a, b) => {
        const x = value(a), y = value(b);
        const order = typeof x === 'number' ? x - y : String(x).localeCompare(String(y));
        return this.ascending ? order : -order;
      });
    }
    const nodes = shown.map((row) => html('tr', {class: row.className ?? ''}, ...row.cells.map((cell, i) => {
      const kind = this.columns[i][1];
      const depth = i === 0 && row.depth ? ` d${Math.min(row.depth, 6)}` : '';
      const text = typeof cell === 'object' ? cell.text : cell;
      return html('td', {class: kind + depth, title: kind === 'name' ? text : null}, text);
    })));
    if (nodes.length === 0) {
      nodes.push(html('tr', {}, html('td', {colspan: this.columns.length, class: 'empty'}, this.empty)));
    }
    this.body.replaceChildren(...nodes);
  }
}
