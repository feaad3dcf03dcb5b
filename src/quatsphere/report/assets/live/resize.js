// Pictures of any size as the model's pixels: a crop or the whole, bicubic with antialiasing, like `fit_image` of quatsphere/data/decode.py.
function cubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// First index and weights of the input pixels of every output pixel along one side.
function tapsOf(size, start, length, outputs) {
  const scale = length / outputs;
  const stretch = Math.max(1, scale);
  return Array.from({ length: outputs }, (_, i) => {
    const centre = start + (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - 2 * stretch + 0.5));
    const last = Math.min(size, Math.trunc(centre + 2 * stretch + 0.5));
    const weights = Array.from({ length: last - first }, (__, n) => cubic((first + n - centre + 0.5) / stretch));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    return { first, weights: weights.map((weight) => weight / total) };
  });
}

const clamped = (value) => Math.max(0, Math.min(255, Math.round(value)));

// Weighted sums along one side of levels: `lines` lines that are `apart` values apart, with `step` from pixel to pixel.
function squeezed(levels, taps, step, lines, apart, out, outStep, outApart) {
  for (let line = 0; line < lines; line++) {
    taps.forEach(({ first, weights }, i) => {
      let sum = 0;
      for (let n = 0; n < weights.length; n++) sum += weights[n] * levels[line * apart + (first + n) * step];
      out[line * outApart + i * outStep] = clamped(sum);
    });
  }
  return out;
}

// The order of `fit_image`: columns first if that removes more than twice as many rows as columns.
const columnsFirst = (width, height, side) => height - side > 2 * Math.max(0, width - side);

// RGBA data (rows of `width` pixels) -> levels (3, side, side) of the part that starts at (left, top).
function resized(data, width, height, { left, top, across, down }, side) {
  const columns = tapsOf(width, left, across, side);
  const rows = tapsOf(height, top, down, side);
  const out = new Uint8Array(3 * side * side);
  for (let c = 0; c < 3; c++) {
    const levels = data.subarray(c);
    const plane = out.subarray(c * side * side, (c + 1) * side * side);
    if (columnsFirst(width, height, side)) {
      const low = squeezed(levels, rows, 4 * width, width, 4, new Uint8Array(side * width), width, 1);
      squeezed(low, columns, 1, side, width, plane, 1, side);
    } else {
      const narrow = squeezed(levels, columns, 4, height, 4 * width, new Uint8Array(height * side), 1, side);
      squeezed(narrow, rows, side, side, 1, plane, side, 1);
    }
  }
  return out;
}

// The part of a picture that the model was trained to see: the middle square, or all of it.
function partOf(width, height) {
  if (meta.file.preprocessing.fit !== 'crop') return { left: 0, top: 0, across: width, down: height };
  const side = Math.min(width, height);
  return { left: (width - side) / 2, top: (height - side) / 2, across: side, down: side };
}

// Pixels of the model from RGBA data.
function fitted(data, width, height) {
  const colour = width === IMAGE_SIDE && height === IMAGE_SIDE
    ? Uint8Array.from({ length: 3 * width * height }, (_, i) => data[4 * (i % (width * height)) + Math.floor(i / (width * height))])
    : resized(data, width, height, partOf(width, height), IMAGE_SIDE);
  if (IMAGE_CHANNELS === 3) return colour;
  const area = IMAGE_SIDE * IMAGE_SIDE;
  return Uint8Array.from({ length: area }, (_, i) => Math.round(0.299 * colour[i] + 0.587 * colour[area + i] + 0.114 * colour[2 * area + i]));
}
