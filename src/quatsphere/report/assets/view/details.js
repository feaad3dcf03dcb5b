// Text and numbers beside the pictures, always set through textContent.
const byId = (id) => document.getElementById(id);
const plural = (count, thing) => `${count} ${thing}${count === 1 ? '' : 's'}`;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// The selected vertex and a table of its neighbours: Re r in the selected image, routing weights in all images.
function writeNeighbours(state, choose) {
  const { source, target } = meta.steps[state.step];
  const sources = neighboursOf(state.step, state.vertex);
  byId('vertex-title').textContent = `Vertex ${state.vertex} of shell ${target + 1}, head ${state.head + 1}`;
  byId('vertex').max = shells[target].count - 1;
  byId('vertex').value = state.vertex;
  byId('vertex-summary').firstChild.textContent = `Receives from ${sources.length} of the ${shells[source].count} vertices of `
    + `shell ${source + 1}; `;
  byId('uniform').textContent = (1 / sources.length).toFixed(5);
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

// Re(r) = <q_i, q_j> in the selected image.
function scoreOf(state, vertex) {
  const own = row(`field.${state.step}`, state.image, state.vertex, state.head);
  return dot(own, row(`source_field.${state.step}`, state.image, vertex, state.head));
}

const vector = (values) => `(${values.map((value) => value.toFixed(2)).join(', ')})`;
const UNROTATED = {
  identity: 'the transport is the identity, so it is received as sent',
  projected: 'the transport is a linear map per head; shown after the map',
};

function writeMessage(state, { source, r, shown, channels }) {
  const angle = angleBetween(r, [1, 0, 0, 0]);
  const by = { lift: 'q of the source', lower: 'q* of the target' }[meta.transport] ?? 'r';
  const rotated = `${by} rotates it by ${angle.toFixed(1)}° about the dotted axis`;
  const [sent, received] = shown[0];
  const some = channels > shown.length ? `the longest ${shown.length} of ${channels} channels` : plural(channels, 'channel');
  byId('message-text').textContent = `Message from vertex ${source}, ${some}; ${UNROTATED[meta.transport] ?? rotated}. `
    + `Longest: ${vector(sent.slice(1))} → ${vector(received.slice(1))}, real part ${sent[0].toFixed(2)} → ${received[0].toFixed(2)}.`;
}

function writeFrames(state) {
  const target = meta.steps[state.step].target;
  const base = row(`base.${target}`, state.vertex, state.head);
  const field = row(`field.${state.step}`, state.image, state.vertex, state.head);
  const moved = angleBetween(base, field).toFixed(1);
  byId('frames-text').textContent = `Head ${state.head + 1}${images.length > 1 ? ` in image ${'AB'[state.image]}` : ''}: perturbed by ${moved}°, `
    + `drifted ${at(`drift.${target}`, state.vertex, state.head).toFixed(3)} rad in training.`;
}

// Ends of the colour scale and meaning of the colours.
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

// Description of the vertex under the pointer.
function describe(state, image, { shell, vertex }) {
  const quantity = QUANTITIES[state.quantity];
  const value = quantity.value?.({ ...state, image, shell, vertex }) ?? null;
  return `vertex ${vertex} of shell ${shell + 1}${value === null ? '' : `: ${quantity.label} ${value.toPrecision(4)}`}`;
}
