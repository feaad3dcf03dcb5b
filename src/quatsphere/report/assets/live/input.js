// Images from the pad, files, the clipboard, the camera and the examples.
const pad = byId('pad');
const CELLS = meta.cells;
const PEN_RADIUS = (2.5 * CELLS) / 32; // as much ink as in scikit-learn's digits, 0.3 of the cells
const WIDEST_DRAWING = 0.75; // of the frame, as in these digits; they are as high as the frame
const strokes = [];
let picture = null; // a canvas with the part of a picture that the model sees
let waiting = null;

// Classify pixels before the next frame; only the last of several in one frame counts.
function show(pixels, example = null) {
  if (waiting === null) {
    requestAnimationFrame(() => {
      const next = waiting;
      waiting = null;
      classify(next.pixels, switches());
      refresh();
    });
  }
  waiting = { pixels };
  [...byId('examples').children].forEach((button, index) => button.setAttribute('aria-pressed', String(index === example)));
}

const cellOf = (event) => [event.offsetX, event.offsetY].map((place) => (place / pad.clientWidth) * CELLS);

// Cells within the pen's radius of a stroke, as 0 or 1.
function inkOf(lines) {
  const cells = new Uint8Array(CELLS * CELLS);
  for (const line of lines) {
    for (let i = 0; i < line.length; i++) inkSegment(cells, line[Math.max(0, i - 1)], line[i]);
  }
  return cells;
}

function inkSegment(cells, [ax, ay], [bx, by]) {
  const span = (a, b) => [Math.max(0, Math.floor(Math.min(a, b) - PEN_RADIUS)), Math.min(CELLS - 1, Math.ceil(Math.max(a, b) + PEN_RADIUS))];
  const [[left, right], [top, bottom]] = [span(ax, bx), span(ay, by)];
  const length = (bx - ax) ** 2 + (by - ay) ** 2;
  for (let y = top; y <= bottom; y++) {
    for (let x = left; x <= right; x++) {
      const [dx, dy] = [x + 0.5 - ax, y + 0.5 - ay];
      const t = length ? Math.max(0, Math.min(1, (dx * (bx - ax) + dy * (by - ay)) / length)) : 0;
      if (Math.hypot(dx - t * (bx - ax), dy - t * (by - ay)) <= PEN_RADIUS) cells[y * CELLS + x] = 1;
    }
  }
}

// Strokes moved and scaled so that they fill the frame, at most threefold; the pen keeps its width.
function framed(lines) {
  const points = lines.flat();
  const range = (axis) => [Math.min(...points.map((p) => p[axis])), Math.max(...points.map((p) => p[axis]))];
  const [[left, right], [top, bottom]] = [range(0), range(1)];
  const scaleTo = (share, length) => (share * CELLS - 2 * PEN_RADIUS) / Math.max(length, 1e-6);
  const scale = Math.min(3, scaleTo(WIDEST_DRAWING, right - left), scaleTo(1, bottom - top));
  const place = (value, low, high) => CELLS / 2 + (value - (low + high) / 2) * scale;
  return lines.map((line) => line.map(([x, y]) => [place(x, left, right), place(y, top, bottom)]));
}

// Levels of pixels: the share of inked cells in each block.
function averaged(cells) {
  const block = CELLS / IMAGE_SIDE;
  const sums = new Float64Array(IMAGE_SIDE * IMAGE_SIDE);
  cells.forEach((ink, i) => { sums[Math.floor(i / CELLS / block) * IMAGE_SIDE + Math.floor((i % CELLS) / block)] += ink; });
  return Uint8Array.from(sums, (sum) => Math.round((255 * sum) / (block * block)));
}

function showStrokes() {
  show(averaged(inkOf(strokes.length && byId('fit').checked ? framed(strokes) : strokes)));
  byId('hint').textContent = strokes.length ? 'Your drawing.' : 'Draw on the pad, or pick an example.';
  drawPad();
}

function drawPad() {
  const { pen, width, height } = prepare(pad);
  if (CELLS && (strokes.length || !picture)) return drawCells(pen, width);
  pen.imageSmoothingEnabled = picture.width > IMAGE_SIDE;
  pen.imageSmoothingQuality = 'high';
  pen.drawImage(picture, 0, 0, width, height);
}

function drawCells(pen, width) {
  const side = width / CELLS;
  pen.strokeStyle = css('--line');
  pen.lineWidth = 1;
  for (let i = 1; i < IMAGE_SIDE; i++) {
    pen.beginPath();
    pen.moveTo((i * width) / IMAGE_SIDE, 0);
    pen.lineTo((i * width) / IMAGE_SIDE, width);
    pen.moveTo(0, (i * width) / IMAGE_SIDE);
    pen.lineTo(width, (i * width) / IMAGE_SIDE);
    pen.stroke();
  }
  pen.fillStyle = css('--ink');
  inkOf(strokes).forEach((ink, i) => {
    if (ink) pen.fillRect((i % CELLS) * side, Math.floor(i / CELLS) * side, side + 0.3, side + 0.3);
  });
}

function clearPad() {
  strokes.length = 0;
  picture = null;
}

function listenToPad() {
  let line = null;
  pad.addEventListener('pointerdown', (event) => {
    if (event.button > 0) return;
    pad.setPointerCapture(event.pointerId);
    if (picture) clearPad();
    line = [cellOf(event)];
    strokes.push(line);
    showStrokes();
  });
  pad.addEventListener('pointermove', (event) => {
    if (!line) return;
    line.push(cellOf(event));
    showStrokes();
  });
  for (const end of ['pointerup', 'pointercancel']) pad.addEventListener(end, () => { line = null; });
  byId('fit').addEventListener('input', () => { if (strokes.length) showStrokes(); });
  byId('clear').addEventListener('click', () => {
    clearPad();
    showStrokes();
  });
}

// A picture that a canvas can draw: its part on the pad, its pixels to the model.
function showPicture(source, width, height) {
  const whole = document.createElement('canvas');
  [whole.width, whole.height] = [width, height];
  const pen = whole.getContext('2d', { willReadFrequently: true });
  pen.fillStyle = '#ffffff';
  pen.fillRect(0, 0, width, height);
  pen.drawImage(source, 0, 0, width, height);
  const { data } = pen.getImageData(0, 0, width, height);
  const { left, top, across, down } = partOf(width, height);
  strokes.length = 0;
  picture = document.createElement('canvas');
  picture.width = picture.height = Math.min(512, Math.round(across));
  picture.getContext('2d').drawImage(whole, left, top, across, down, 0, 0, picture.width, picture.height);
  drawPad();
  show(fitted(data, width, height));
}

async function showFile(file) {
  stopCamera();
  try {
    const bitmap = await createImageBitmap(file, { colorSpaceConversion: 'none' });
    showPicture(bitmap, bitmap.width, bitmap.height);
    byId('hint').textContent = `${file.name || 'Picture'}: ${bitmap.width} x ${bitmap.height} pixels.`;
  } catch {
    byId('hint').textContent = `Cannot read ${file.name || 'this'} as a picture; use PNG, JPEG or WebP.`;
  }
}

function canvasOf(pixels) {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = IMAGE_SIDE;
  const area = IMAGE_SIDE * IMAGE_SIDE;
  const data = new ImageData(IMAGE_SIDE, IMAGE_SIDE);
  for (let i = 0; i < area; i++) {
    data.data.set([0, 1, 2].map((c) => pixels[(IMAGE_CHANNELS === 3 ? c * area : 0) + i]).concat(255), 4 * i);
  }
  canvas.getContext('2d').putImageData(data, 0, 0);
  return canvas;
}

// An example: its pixels to the model, its photograph or its pixels on the pad.
function showExample(index) {
  stopCamera();
  const pixels = examplePixels(index);
  strokes.length = 0;
  picture = photos[index] ?? canvasOf(pixels);
  drawPad();
  show(pixels, index);
  byId('hint').textContent = `Example: ${meta.examples[index].name}.`;
}

const photos = [];
meta.examples.forEach(({ name, photo }, index) => {
  const button = byId('examples').appendChild(element('button'));
  button.type = 'button';
  button.title = name;
  button.setAttribute('aria-label', `Example: ${name}`);
  button.append(canvasOf(examplePixels(index)));
  button.addEventListener('click', () => showExample(index));
  if (!photo) return;
  const image = new Image();
  image.src = photo;
  image.decode().then(() => {
    photos[index] = image;
    if (button.getAttribute('aria-pressed') === 'true') {
      picture = image;
      drawPad();
    }
  });
});

let stream = null;

async function startCamera() {
  const video = document.createElement('video');
  video.muted = video.playsInline = true;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: 320, height: 240 } });
    video.srcObject = stream;
    await video.play();
  } catch {
    byId('hint').textContent = 'The camera cannot be used; allow it in the browser, or choose a picture.';
    return stopCamera();
  }
  markCamera();
  byId('hint').textContent = `Camera: ${video.videoWidth} x ${video.videoHeight} pixels.`;
  const own = stream;
  const look = () => {
    if (stream !== own) return;
    if (waiting === null && video.videoWidth) showPicture(video, video.videoWidth, video.videoHeight);
    requestAnimationFrame(look);
  };
  look();
}

function stopCamera() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  markCamera();
}

function markCamera() {
  const button = byId('camera');
  if (!button) return;
  button.setAttribute('aria-pressed', String(stream !== null));
  button.textContent = stream ? 'Stop camera' : 'Camera';
}

function listenToPictures() {
  const only = (event) => [...(event.dataTransfer ?? event.clipboardData).files].find((file) => file.type.startsWith('image/'));
  byId('file').addEventListener('input', () => {
    if (byId('file').files.length) showFile(byId('file').files[0]);
    byId('file').value = '';
  });
  document.addEventListener('dragover', (event) => {
    event.preventDefault();
    document.body.classList.add('dropping');
  });
  document.addEventListener('dragleave', () => document.body.classList.remove('dropping'));
  for (const kind of ['drop', 'paste']) {
    document.addEventListener(kind, (event) => {
      document.body.classList.remove('dropping');
      if (kind === 'drop') event.preventDefault();
      const file = only(event);
      if (file) showFile(file);
    });
  }
  if (!byId('camera')) return;
  byId('camera').addEventListener('click', () => (stream ? stopCamera() : startCamera()));
  navigator.mediaDevices?.enumerateDevices().then((devices) => {
    byId('camera').hidden = !devices.some(({ kind }) => kind === 'videoinput');
  }).catch(() => {});
}
