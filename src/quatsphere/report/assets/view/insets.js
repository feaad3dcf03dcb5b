// Small pictures: the image with sampling points, the frames of all heads, one message before and after transport.
const pictures = [];

// The image as a canvas of its size, made once.
function pictureOf(image) {
  if (pictures[image]) return pictures[image];
  const { shape: [, , rows, columns] } = arrays.get('pixels');
  const pixels = new ImageData(columns, rows);
  for (let y = 0; y < rows; y++) {
    for (let x = 0; x < columns; x++) pixels.data.set([...pixelAt(image, y, x), 255], 4 * (y * columns + x));
  }
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [columns, rows];
  canvas.getContext('2d').putImageData(pixels, 0, 0);
  pictures[image] = canvas;
  return canvas;
}

const EVIDENCE_CELLS = 28;

// Class evidence on the image: the evidence of the vertices near each place, opaque where it is strong.
function paintEvidence(pen, width, height, image, state, range) {
  const shell = shells[meta.steps[state.step].target];
  const values = valuesOn(QUANTITIES.evidence, state, image, shell);
  const near = shell.count / 2.5; // 1 / (2 σ²) for σ of about half the distance of vertices in image coordinates
  const cells = new ImageData(EVIDENCE_CELLS, EVIDENCE_CELLS);
  for (let i = 0; i < EVIDENCE_CELLS ** 2; i++) {
    const [u, v] = [i % EVIDENCE_CELLS, Math.floor(i / EVIDENCE_CELLS)].map((place) => (2 * place + 1) / EVIDENCE_CELLS - 1);
    let [sum, total] = [0, 1e-12];
    shell.imageCoords.forEach(([a, b], vertex) => {
      const share = Math.exp(-near * ((a - u) ** 2 + (b - v) ** 2));
      sum += share * values[vertex];
      total += share;
    });
    const strength = sum / total / range[1];
    cells.data.set([...mixed('signed', 0.5 + 0.5 * strength), Math.min(215, 330 * Math.abs(strength))], 4 * i);
  }
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = EVIDENCE_CELLS;
  canvas.getContext('2d').putImageData(cells, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(canvas, 0, 0, width, height);
}

function drawThumb(canvas, image, state, range) {
  const { pen, width, height } = prepare(canvas);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(pictureOf(image), 0, 0, width, height);
  if (state.quantity === 'evidence' && range) return paintEvidence(pen, width, height, image, state, range);
  const { source, target } = meta.steps[state.step];
  const dot = (shell, vertex, radius, colour) => {
    const [u, v] = shells[shell].imageCoords[vertex];
    ring(pen, ((u + 1) / 2) * width, ((v + 1) / 2) * height, radius, colour);
  };
  const sources = neighboursOf(state.step, state.vertex);
  sources.forEach((vertex, slot) => {
    const share = weightOf(image, state.step, state.vertex, slot, state.head) * sources.length;
    dot(source, vertex, Math.min(5, 1.5 * share), slot === state.slot ? css('--warm') : css('--ink'));
  });
  dot(target, state.vertex, 5, css('--accent'));
}

const headColumns = Math.min(meta.heads, 8);

// A grid with a cell per head; returns a function from a point of the canvas to a head.
function drawFrames(canvas, image, state) {
  const { pen, width } = prepare(canvas);
  const columns = headColumns;
  const side = width / columns;
  const target = meta.steps[state.step].target;
  for (let head = 0; head < meta.heads; head++) {
    const [left, top] = [(head % columns) * side, Math.floor(head / columns) * side];
    if (head === state.head) {
      pen.strokeStyle = css('--accent');
      pen.lineWidth = 2;
      pen.strokeRect(left + 1, top + 1, side - 2, side - 2);
    }
    const lens = parallelLens(left + side / 2, top + side / 2, 0.36 * side);
    drawAxes(pen, lens, [0, 0, 0], row(`base.${target}`, state.vertex, head), 1, true);
    drawAxes(pen, lens, [0, 0, 0], row(`field.${state.step}`, image, state.vertex, head), 1, false);
    pen.fillStyle = css('--muted');
    pen.font = '10px system-ui, sans-serif';
    pen.fillText(String(head + 1), left + 4, top + 12);
  }
  return (x, y) => Math.floor(y / side) * columns + Math.floor(x / side);
}

// Parallel projection, for pictures without depth.
const parallelLens = (x, y, unit) => (place) => {
  const [across, up] = rotate(place);
  return [x + unit * across, y - unit * up];
};

// The message of the selected neighbour as sent and as received: m = r x r* for the sandwich, r x one-sided, x for the
// identity; lift uses q_j and lower q_i* in place of r.
function messageOf(image, state) {
  const source = neighboursOf(state.step, state.vertex)[state.slot];
  const target = row(`field.${state.step}`, image, state.vertex, state.head);
  const sender = row(`source_field.${state.step}`, image, source, state.head);
  const r = { lift: sender, lower: conjugate(target) }[meta.transport] ?? relative(target, sender);
  const rotated = (x) => sandwich(r, x);
  const rules = { sandwich: rotated, lift: rotated, lower: rotated, one_sided: (x) => multiply(r, x) };
  const transport = rules[meta.transport] ?? ((x) => x);
  const channels = arrays.get(`features.${state.step}`).shape[3];
  const sent = Array.from({ length: channels }, (_, q) => row(`features.${state.step}`, image, source, state.head, q));
  const shown = sent.map((x) => [x, transport(x)]).sort(([a], [b]) => normOf(b) - normOf(a)).slice(0, CHANNELS.length);
  return { source, r, shown, channels };
}

function drawMessage(canvas, { r, shown }) {
  const { pen, width, height } = prepare(canvas);
  const most = Math.max(1e-12, ...shown.flatMap(([sent, received]) => [normOf(sent.slice(1)), normOf(received.slice(1))]));
  const lens = parallelLens(width / 2, height / 2, 0.44 * Math.min(width, height));
  const axis = normOf(r.slice(1)) > 1e-6 ? r.slice(1).map((value) => value / normOf(r.slice(1))) : null;
  if (axis) line(pen, lens, axis.map((value) => -1.15 * value), axis.map((value) => 1.15 * value), css('--muted'), 1, [2, 4]);
  shown.forEach(([sent, received], number) => {
    line(pen, lens, [0, 0, 0], sent.slice(1).map((value) => value / most), CHANNELS[number], 1.6, [5, 4]);
    line(pen, lens, [0, 0, 0], received.slice(1).map((value) => value / most), CHANNELS[number], 3, []);
  });
}

function line(pen, lens, from, to, colour, width, dash) {
  const [start, end] = [lens(toScreenAxes(from)), lens(toScreenAxes(to))];
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(...start);
  pen.lineTo(...end);
  pen.stroke();
  pen.setLineDash([]);
  if (!dash.length) arrowHead(pen, ...start, ...end);
}

// The colour scale.
function drawRamp(canvas, state) {
  const { scale } = QUANTITIES[state.quantity];
  const { pen, width, height } = prepare(canvas);
  for (let x = 0; scale && x < width; x++) {
    pen.fillStyle = ramp(scale, x / (width - 1));
    pen.fillRect(x, 0, 1.5, height);
  }
}
