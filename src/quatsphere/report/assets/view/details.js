// The words and numbers beside the pictures; all text goes through textContent.
const byId = (id) => document.getElementById(id);
const plural = (count, thing) => `${count} ${thing}${count === 1 ? '' : 's'}`;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// The chosen vertex and a table of its neighbours: Re r for the chosen image, the routing weight for each.
function writeNeighbours(state, choose) {
  const { source, target } = meta.steps[state.step];
  const sources = neighboursOf(state.step, state.vertex);
  byId('vertex-title').textContent = `Vertex ${state.vertex} of shell ${target + 1}, head ${state.head + 1}`;
  byId('vertex').max = shells[target].count - 1;
  byId('vertex').value = state.vertex;
  byId('hears').textContent = `hears ${sources.length} of the ${shells[source].count} vertices of shell `
    + `${source + 1}; uniform: ${(1 / sources.length).toFixed(5)}`;
  const weights = images.map((image) => sources.map((_, slot) => weightOf(image, state.step, state.vertex, slot, state.head)));
  const most = Math.max(...weights.flat());
  byId('neighbours').replaceChildren(...sources.map((vertex, slot) => {
    const line = element('tr', undefined, slot === state.slot ? 'chosen' : '');
    const name = line.appendChild(element('td'));
    const button = name.appendChild(element('button', String(vertex)));
    button.type = 'button';
    button.setAttribute('aria-pressed', String(slot === state.slot));
    button.addEventListener('click', () => choose(slot));
    if (hasFrames) line.append(element('td', scoreOf(state, vertex).toFixed(4)));
    for (const image of images) {
      const cell = line.appendChild(element('td', undefined, 'weight'));
      const bar = cell.appendChild(element('span', undefined, 'bar'));
      bar.style.width = `${(100 * weights[image][slot]) / most}%`;
      cell.append(element('span', weights[image][slot].toFixed(5)));
    }
    return line;
  }));
}

// Re(r) = <q_i, q_j> in the chosen image.
function scoreOf(state, vertex) {
  const own = row(`field.${state.step}`, state.image, state.vertex, state.head);
  return dot(own, row(`source_field.${state.step}`, state.image, vertex, state.head));
}

const vector = (values) => `(${values.map((value) => value.toFixed(2)).join(', ')})`;
const CARRIED = {
  identity: 'transport is the identity: it arrives as it was sent',
  projected: 'transport is a linear map per head, the same for every target: shown after it',
};

function writeMessage(state, { source, r, shown, channels }) {
  const angle = angleBetween(r, [1, 0, 0, 0]);
  const by = { lift: 'q of the sender', lower: 'q* of the receiver' }[meta.transport] ?? 'r';
  const turned = `${by} turns it by ${angle.toFixed(1)}° about the dotted axis`;
  const [sent, arrived] = shown[0];
  const some = channels > shown.length ? `the longest ${shown.length} of ${channels} channels` : plural(channels, 'channel');
  byId('message-text').textContent = `from vertex ${source}, ${some}; ${CARRIED[meta.transport] ?? turned}. `
    + `Longest: ${vector(sent.slice(1))} → ${vector(arrived.slice(1))}, real part ${sent[0].toFixed(2)} → ${arrived[0].toFixed(2)}.`;
}

function writeFrames(state) {
  const target = meta.steps[state.step].target;
  const base = row(`base.${target}`, state.vertex, state.head);
  const field = row(`field.${state.step}`, state.image, state.vertex, state.head);
  const moved = angleBetween(base, field).toFixed(1);
  byId('frames-text').textContent = `Head ${state.head + 1} in image ${'AB'[state.image]}: perturbed by ${moved}°, `
    + `drifted ${at(`drift.${target}`, state.vertex, state.head).toFixed(3)} rad in training.`;
}

// The ends of the colour scale and what the colours mean.
function writeLegend(state, range) {
  const quantity = QUANTITIES[state.quantity];
  const shown = range !== null;
  const scale = shown ? ` Scale of shell ${meta.steps[state.step].target + 1}.` : '';
  byId('meaning').textContent = quantity.meaning + scale;
  byId('scale').classList.toggle('unused', !shown);
  if (!shown) return;
  byId('low').textContent = range[0].toPrecision(3);
  byId('high').textContent = range[1].toPrecision(3);
}

// What the pointer is on.
function describe(state, image, { shell, vertex }) {
  const quantity = QUANTITIES[state.quantity];
  const value = quantity.value?.({ ...state, image, shell, vertex }) ?? null;
  return `vertex ${vertex} of shell ${shell + 1}${value === null ? '' : `: ${quantity.label} ${value.toPrecision(4)}`}`;
}
