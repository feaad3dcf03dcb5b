// State, controls, and drawing after changes.
const scenes = [...document.querySelectorAll('.scene')].map((scene, image) => ({
  image, scene, stage: scene.querySelector('.stage'), thumb: scene.querySelector('.thumb'), hover: scene.querySelector('.hover'),
}));
// Within a shell the first neighbour is the vertex itself, so the second one is selected.
const firstSlot = (step) => (meta.steps[step].source === meta.steps[step].target ? 1 : 0);
const state = { step: 0, head: 0, vertex: nearestVertex(0, flat ? [0, 0] : rotateBack([0, 0, 1])), slot: firstSlot(0), image: 0, quantity: 'image', outer: true };
let painted = null;
let headAt = () => 0;
let pending = false;

// The vertex of the step's target shell nearest to a place.
function nearestVertex(step, place) {
  const shell = shells[meta.steps[step].target];
  const distance = (vertex) => Math.hypot(...placeIn(shell, vertex).map((value, i) => value - place[i]));
  let best = 0;
  for (let vertex = 1; vertex < shell.count; vertex++) if (distance(vertex) < distance(best)) best = vertex;
  return best;
}

// Coordinates that are comparable between shells: the direction from the centre, or the place on the plane.
function placeIn(shell, vertex) {
  return flat ? shell.imageCoords[vertex] : shell.places[vertex].map((value) => value / shell.radius);
}

// Colours depend on the state, not on the camera.
function paint() {
  painted = paintShells(state, shownShells(state));
}

// All pictures first, then all text: text before measurements would cause a second page layout.
function draw() {
  pending = false;
  for (const { image, stage, thumb } of scenes) {
    drawStage(stage, image, state, painted.colours);
    drawThumb(thumb, image, state, painted.range);
  }
  drawRamp(byId('ramp'), state);
  if (hasFrames) {
    const message = messageOf(state.image, state);
    drawMessage(byId('message'), message);
    headAt = drawFrames(byId('frames'), state.image, state);
    writeMessage(state, message);
    writeFrames(state);
  }
  for (const { image, scene } of scenes) scene.classList.toggle('active', scenes.length > 1 && image === state.image);
  writeNeighbours(state, (slot) => change({ slot }));
  writeLegend(state, painted.range);
  byId('step-name').textContent = `${state.step + 1}: ${meta.steps[state.step].name}`;
  byId('head-name').textContent = `${state.head + 1} of ${meta.heads}`;
  document.documentElement.dataset.drawn = String(performance.now());
}

function schedule() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(draw);
}

// Apply changes to the state; a step to another shell selects the vertex in the same direction.
function change(changes) {
  if (changes.step !== undefined && meta.steps[changes.step].target !== meta.steps[state.step].target) {
    changes.vertex = nearestVertex(changes.step, placeIn(shells[meta.steps[state.step].target], state.vertex));
    changes.slot = firstSlot(changes.step);
  }
  Object.assign(state, changes);
  const count = neighboursOf(state.step, state.vertex).length;
  state.slot = Math.min(state.slot, count - 1);
  for (const [id, value] of [['step', state.step + 1], ['head', state.head + 1], ['quantity', state.quantity]]) byId(id).value = value;
  if (byId('image')) byId('image').value = state.image;
  paint();
  schedule();
}

function rotateBy(across, down) {
  aim({ yaw: camera.yaw + across, pitch: Math.max(-1.5, Math.min(1.5, camera.pitch + down)) });
  schedule();
}

function zoomBy(factor) {
  aim({ zoom: Math.max(0.5, Math.min(8, camera.zoom * factor)) });
  schedule();
}

// Drag rotates, two fingers zoom, a click without a drag selects.
function listen({ image, stage, hover }) {
  const fingers = new Map();
  let moved = 0;
  stage.addEventListener('pointerdown', (event) => {
    stage.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (fingers.size === 1) moved = 0;
  });
  stage.addEventListener('pointermove', (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) {
      const found = pick(stage, state, event.offsetX, event.offsetY);
      hover.textContent = found ? describe(state, image, found) : '';
      return;
    }
    const [dx, dy] = [event.offsetX - before[0], event.offsetY - before[1]];
    moved += Math.abs(dx) + Math.abs(dy);
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const span = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
      zoomBy(span([event.offsetX, event.offsetY]) / Math.max(1, span(before)));
    } else if (moved > 4) {
      rotateBy(dx * 0.008, dy * 0.008);
    }
    fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
  });
  const lift = (event) => fingers.delete(event.pointerId);
  stage.addEventListener('pointercancel', lift);
  stage.addEventListener('pointerup', (event) => {
    lift(event);
    const found = moved > 4 ? null : pick(stage, state, event.offsetX, event.offsetY);
    if (found) change(found.slot === null ? { image, vertex: found.vertex, slot: firstSlot(state.step) } : { image, slot: found.slot });
  });
  stage.addEventListener('wheel', (event) => {
    event.preventDefault();
    zoomBy(Math.exp(-0.0015 * event.deltaY));
  }, { passive: false });
  stage.addEventListener('keydown', (event) => {
    const keys = {
      ArrowLeft: () => rotateBy(-0.1, 0), ArrowRight: () => rotateBy(0.1, 0), ArrowUp: () => rotateBy(0, -0.1),
      ArrowDown: () => rotateBy(0, 0.1), '+': () => zoomBy(1.15), '-': () => zoomBy(1 / 1.15),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
}

// Play moves through the steps until it is pressed again or the step is set by hand.
const PLAY_PAUSE = 1400;
let playing = 0;

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => change({ step: (state.step + 1) % meta.steps.length }), PLAY_PAUSE) : 0;
  byId('play').textContent = on ? '⏸ Pause' : '▶ Play';
  byId('play').setAttribute('aria-pressed', String(on));
}

function begin() {
  for (const [name, quantity] of Object.entries(QUANTITIES)) {
    if (quantity.needsFrames && !hasFrames) continue;
    const option = byId('quantity').appendChild(element('option', quantity.label));
    option.value = name;
  }
  for (const part of document.querySelectorAll('.framed')) part.hidden = !hasFrames;
  scenes.forEach(listen);
  const number = (id) => Number(byId(id).value);
  byId('play').addEventListener('click', () => play(!playing));
  byId('step').addEventListener('input', () => {
    play(false);
    change({ step: number('step') - 1 });
  });
  byId('head').addEventListener('input', () => change({ head: number('head') - 1 }));
  byId('quantity').addEventListener('input', () => {
    const quantity = byId('quantity').value;
    const last = quantity === 'pool' || (quantity === 'evidence' && !arrays.has(`evidence.${state.step}`));
    change(last ? { quantity, step: LAST_STEP } : { quantity });
  });
  byId('outer').addEventListener('input', () => change({ outer: byId('outer').checked }));
  byId('image')?.addEventListener('input', () => change({ image: number('image') }));
  byId('vertex').addEventListener('input', () => {
    const most = shells[meta.steps[state.step].target].count - 1;
    change({ vertex: Math.max(0, Math.min(most, Math.trunc(number('vertex')) || 0)), slot: firstSlot(state.step) });
  });
  byId('frames').addEventListener('click', (event) => change({ head: Math.min(meta.heads - 1, headAt(event.offsetX, event.offsetY)) }));
  byId('reset').addEventListener('click', () => {
    aim(FACING);
    schedule();
  });
  byId('theme').addEventListener('click', () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
    readInk();
    schedule();
  });
  document.querySelector('.controls').addEventListener('submit', (event) => event.preventDefault());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readInk();
    schedule();
  });
  new ResizeObserver(schedule).observe(document.body);
  byId('frames').style.aspectRatio = `${headColumns} / ${Math.ceil(meta.heads / headColumns)}`;
  readInk();
  change({});
  draw();
  document.documentElement.dataset.ready = String(performance.now());
}

begin();
