// One image's shells on a canvas: discs for vertices, lines to the neighbours of the selected vertex, its frame on top.
const ink = new Map();
const css = (name) => ink.get(name);

// The colours of the page's theme, read when it changes.
function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['--ink', '--muted', '--line', '--accent', '--warm', '--stage', '--globe']) {
    ink.set(name, style.getPropertyValue(name).trim());
  }
}

// A canvas ready to be drawn on in CSS pixels.
function prepare(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const density = window.devicePixelRatio || 1;
  const [deviceWidth, deviceHeight] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== deviceWidth || canvas.height !== deviceHeight) {
    canvas.width = deviceWidth;
    canvas.height = deviceHeight;
  }
  const pen = canvas.getContext('2d');
  pen.setTransform(density, 0, 0, density, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

// Shells up to the target of the step, outermost first; without the outer ones only the two shells of the step.
function shownShells(state) {
  const { source, target } = meta.steps[state.step];
  return shells.filter((shell) => (state.outer ? shell.index <= target : shell.index === source || shell.index === target));
}

// Radius that fills the canvas: a little more than the target shell, so that lines from the next outer shell are seen.
function fittedRadius(state) {
  return Math.min(shownShells(state)[0].radius, 1.2 * shells[meta.steps[state.step].target].radius);
}

function drawStage(canvas, image, state, colours) {
  const { pen, width, height } = prepare(canvas);
  const target = meta.steps[state.step].target;
  const shown = shownShells(state);
  const lens = lensOf(width, height, fittedRadius(state));
  const drawn = { pen, lens, image, state, colours, target };
  if (flat) {
    const away = rotate([0, 0, 1])[2] > 0 ? shown : [...shown].reverse();
    for (const shell of away) {
      drawSheet(drawn, shell);
      if (shell.index === 0) drawImage(drawn);
      drawHalf(drawn, shell, null);
    }
  } else {
    for (const shell of shown) drawHalf(drawn, shell, false);
    drawGlobe(drawn, shells[target]);
    if (target === 0) drawImage(drawn);
    for (const shell of [...shown].reverse()) drawHalf(drawn, shell, true);
  }
  drawEdges(drawn);
  if (hasFrames) drawFrame(drawn);
}

// The body of the target shell, which dims everything behind it.
function drawGlobe({ pen, lens }, shell) {
  const [x, y, , scale] = lens([0, 0, 0]);
  const edge = scale * DISTANCE * shell.radius / Math.sqrt(DISTANCE * DISTANCE - shell.radius * shell.radius);
  const shade = pen.createRadialGradient(x - edge / 3, y - edge / 3, edge / 8, x, y, edge);
  shade.addColorStop(0, css('--globe'));
  shade.addColorStop(1, css('--stage'));
  pen.globalAlpha = 0.72;
  pen.fillStyle = shade;
  pen.beginPath();
  pen.arc(x, y, edge, 0, 7);
  pen.fill();
  pen.globalAlpha = 1;
  pen.strokeStyle = css('--line');
  pen.lineWidth = 1;
  pen.stroke();
}

function drawSheet({ pen, lens }, shell) {
  const edge = 1.02 * SHEET;
  pen.beginPath();
  for (const [right, up] of [[-1, -1], [1, -1], [1, 1], [-1, 1]]) {
    const [x, y] = lens([edge * right, edge * up, shell.depth]);
    pen.lineTo(x, y);
  }
  pen.closePath();
  pen.globalAlpha = 0.6;
  pen.fillStyle = css('--globe');
  pen.fill();
  pen.globalAlpha = 1;
  pen.strokeStyle = css('--line');
  pen.stroke();
}

// Patches along a side of the image on the shell: one or more per pixel, at most 48.
const patchesFor = (pixels) => Math.min(48, pixels * Math.ceil(24 / pixels));

// The image on the first shell; on the sphere only its visible half.
function drawImage({ pen, lens, image }) {
  const { shape: [, , rows, columns] } = arrays.get('pixels');
  const [tall, wide] = [patchesFor(rows), patchesFor(columns)];
  const corners = [];
  for (let i = 0; i <= tall; i++) {
    for (let j = 0; j <= wide; j++) corners.push(lens(placeOf((2 * j) / wide - 1, (2 * i) / tall - 1)));
  }
  pen.lineWidth = 0.8;
  for (let i = 0; i < tall; i++) {
    for (let j = 0; j < wide; j++) {
      const first = i * (wide + 1) + j;
      const patch = [corners[first], corners[first + 1], corners[first + wide + 2], corners[first + wide + 1]];
      if (!isVisible(shells[0], (patch[0][2] + patch[2][2]) / 2)) continue;
      const colour = pixelAt(image, Math.floor(((i + 0.5) * rows) / tall), Math.floor(((j + 0.5) * columns) / wide));
      pen.fillStyle = pen.strokeStyle = `rgb(${colour})`;
      pen.beginPath();
      for (const [x, y] of patch) pen.lineTo(x, y);
      pen.closePath();
      pen.fill();
      pen.stroke();
    }
  }
}

// Place of image coordinates (u, v) on the first shell: the inverse Lambert projection, or the plane.
function placeOf(u, v) {
  if (flat) return [SHEET * u, -SHEET * v, shells[0].depth];
  const across = Math.sqrt(Math.max(0, 1 - v * v));
  const place = [across * Math.cos(Math.PI * u), v, across * Math.sin(Math.PI * u)];
  return toScreenAxes(place.map((value) => shells[0].radius * value));
}

function pixelAt(image, y, x) {
  const channels = arrays.get('pixels').shape[1];
  return [0, 1, 2].map((colour) => at('pixels', image, channels >= 3 ? colour : 0, y, x));
}

// The near or far half of a shell; shells outside the target shell are pale and transparent.
function drawHalf({ pen, lens, image, colours, target }, shell, near) {
  const own = shell.index === target;
  const painted = shell.index === 0 && near !== false && (own || flat);
  const size = own || flat ? (painted ? 0.24 : 0.46) * shell.spacing : Math.min(0.3 * shell.spacing, 0.09 * shell.radius);
  const normal = rotate([0, 0, 1]);
  pen.globalAlpha = own ? (near === false ? 0.5 : 1) : near === false ? 0.75 : 0.3;
  for (let vertex = 0; vertex < shell.count; vertex++) {
    const [x, y, towards, scale] = lens(shell.places[vertex]);
    if (near !== null && isVisible(shell, towards) !== near) continue;
    const [nx, ny, nz] = flat ? normal : rotate(shell.places[vertex]).map((value) => value / shell.radius);
    const radius = size * scale;
    pen.fillStyle = colours[image][shell.index][vertex] ?? css('--line');
    pen.beginPath();
    pen.ellipse(x, y, radius * Math.max(0.22, Math.abs(nz)), radius, Math.atan2(-ny, nx), 0, 7);
    pen.fill();
    if (painted) outline(pen);
  }
  pen.globalAlpha = 1;
}

// Outline that separates a disc from the image below it.
function outline(pen) {
  for (const [width, colour] of [[2.4, '#000000'], [1.2, '#ffffff']]) {
    pen.lineWidth = width;
    pen.strokeStyle = colour;
    pen.stroke();
  }
}

// Edges of the selected vertex; the width of a line is its weight times k (1 for uniform weights).
function drawEdges({ pen, lens, image, state }) {
  const { source, target } = meta.steps[state.step];
  const sources = neighboursOf(state.step, state.vertex);
  const weights = sources.map((_, slot) => weightOf(image, state.step, state.vertex, slot, state.head));
  const most = Math.max(...weights);
  const [x, y] = lens(shells[target].places[state.vertex]);
  pen.lineCap = 'round';
  for (const halo of [true, false]) {
    sources.forEach((vertex, slot) => {
      const [sx, sy] = lens(shells[source].places[vertex]);
      const chosen = slot === state.slot;
      const width = Math.min(9, 0.6 + 1.7 * weights[slot] * sources.length);
      pen.strokeStyle = halo ? css('--stage') : chosen ? css('--warm') : css('--ink');
      pen.globalAlpha = halo ? 0.7 : chosen ? 1 : 0.35 + (0.55 * weights[slot]) / most;
      pen.lineWidth = halo ? width + 2 : width;
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(sx, sy);
      pen.stroke();
      if (!halo) ring(pen, sx, sy, chosen ? 6 : 4, chosen ? css('--warm') : css('--ink'));
    });
  }
  pen.globalAlpha = 1;
  ring(pen, x, y, 8, css('--accent'));
}

function ring(pen, x, y, radius, colour) {
  for (const [width, stroke] of [[4.5, css('--stage')], [2.2, colour]]) {
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 7);
    pen.stroke();
  }
}

function drawFrame({ pen, lens, image, state, target }) {
  const place = shells[target].places[state.vertex];
  const base = row(`base.${target}`, state.vertex, state.head);
  const field = row(`field.${state.step}`, image, state.vertex, state.head);
  const length = (0.3 * fittedRadius(state)) / Math.max(1, camera.zoom);
  drawAxes(pen, lens, place, base, length, true);
  drawAxes(pen, lens, place, field, length, false);
}

// Three axes of a quaternion at a place; dashed before the perturbation, with arrow heads and letters after it.
function drawAxes(pen, lens, place, q, length, dashed) {
  const [x, y] = lens(place);
  axesOf(q).forEach((axis, number) => {
    const [ex, ey] = lens(toScreenAxes(axis).map((value, i) => place[i] + length * value));
    pen.strokeStyle = pen.fillStyle = AXES[number];
    pen.lineWidth = dashed ? 1.4 : 2.6;
    pen.setLineDash(dashed ? [4, 3] : []);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(ex, ey);
    pen.stroke();
    pen.setLineDash([]);
    if (!dashed) arrowHead(pen, x, y, ex, ey);
  });
}

function arrowHead(pen, x, y, ex, ey) {
  const length = Math.hypot(ex - x, ey - y);
  if (length < 8) return;
  const [ux, uy] = [(ex - x) / length, (ey - y) / length];
  pen.beginPath();
  pen.moveTo(ex + 3 * ux, ey + 3 * uy);
  pen.lineTo(ex - 6 * ux - 4 * uy, ey - 6 * uy + 4 * ux);
  pen.lineTo(ex - 6 * ux + 4 * uy, ey - 6 * uy - 4 * ux);
  pen.fill();
}

// The vertex under a point: of the target shell, or a neighbour of the selected one. Visible vertices come first.
function pick(canvas, state, px, py) {
  const lens = lensOf(canvas.clientWidth, canvas.clientHeight, fittedRadius(state));
  const { source, target } = meta.steps[state.step];
  let best = { distance: Infinity };
  const offer = (shell, vertex, slot) => {
    const [x, y, towards, scale] = lens(shell.places[vertex]);
    const distance = Math.hypot(x - px, y - py) + (isVisible(shell, towards) ? 0 : 12) - (slot === null ? 0 : 2);
    const near = Math.max(22, 0.6 * shell.spacing * scale);
    if (distance < Math.min(near, best.distance)) best = { distance, shell: shell.index, vertex, slot };
  };
  for (let vertex = 0; vertex < shells[target].count; vertex++) offer(shells[target], vertex, null);
  if (source !== target) neighboursOf(state.step, state.vertex).forEach((vertex, slot) => offer(shells[source], vertex, slot));
  return best.shell === undefined ? null : best;
}
