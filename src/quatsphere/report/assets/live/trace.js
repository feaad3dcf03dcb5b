// The forward pass of the current image as the arrays that the pictures read, with one image.
const [IMAGE_CHANNELS, IMAGE_SIDE] = shapeOf('examples').slice(1);
const shown = { pixels: null, off: {}, result: null, complete: null };

function setArray(name, data, ...shape) {
  arrays.set(name, { data, shape: [1, ...shape], scale: 1 });
}

// Features (vertex, head, channel, component) of rows in the order of tokens.
function featuresOf(rows) {
  return rows.map((_, i) => {
    const inToken = i % WIDTH;
    const [component, place] = [inToken % 4, Math.floor(inToken / 4)];
    const [channel, head] = [place % CHANNELS_PER_HEAD, Math.floor(place / CHANNELS_PER_HEAD)];
    return rows[i - inToken + (component * CHANNELS_PER_HEAD + channel) * HEADS + head];
  });
}

function normsOf(tokens) {
  return Float64Array.from({ length: tokens.length / WIDTH }, (_, v) => normOf(tokens.subarray(v * WIDTH, (v + 1) * WIDTH)));
}

// Levels 0 to 255 of the first shell's vertices: the mean of their samples; one channel is grey.
function firstColours(pixels) {
  const samples = samplesOf(pixels, IMAGE_CHANNELS);
  const count = shells[0].count;
  const each = samples.length / count / IMAGE_CHANNELS;
  return Float64Array.from({ length: 3 * count }, (_, i) => {
    const start = (Math.floor(i / 3) * IMAGE_CHANNELS + (IMAGE_CHANNELS >= 3 ? i % 3 : 0)) * each;
    return samples.subarray(start, start + each).reduce((sum, value) => sum + value, 0) / each;
  });
}

// Colours of a step's targets: those of the sources, averaged with the routing weights of all heads.
function routedColours(step, weights, colours) {
  const neighbours = constant(`neighbours.${step}`);
  const k = shapeOf(`neighbours.${step}`)[1];
  const out = new Float64Array((3 * neighbours.length) / k);
  for (let edge = 0; edge < neighbours.length; edge++) {
    let share = 0;
    for (let h = 0; h < HEADS; h++) share += weights[edge * HEADS + h] / HEADS;
    for (let c = 0; c < 3; c++) out[3 * Math.floor(edge / k) + c] += share * colours[3 * neighbours[edge] + c];
  }
  return out;
}

// Contribution of each vertex of the last shell to the logit of a class; they sum to the logit minus its bias.
function evidenceOf(tokens, pool, label) {
  const weight = constant('classifier.weight');
  const heads = meta.pooling.heads;
  const out = new Float64Array(tokens.length / WIDTH);
  for (let i = 0; i < tokens.length; i++) {
    const v = Math.floor(i / WIDTH);
    out[v] += pool[v * heads + (i % heads)] * tokens[i] * weight[label * WIDTH + (i % WIDTH)];
  }
  return out;
}

const topOf = (values) => values.indexOf(Math.max(...values));

function probabilitiesOf(logits) {
  const top = Math.max(...logits);
  const shares = Array.from(logits, (logit) => Math.exp(logit - top));
  const total = shares.reduce((sum, share) => sum + share, 0);
  return shares.map((share) => share / total);
}

const levelsOf = (pixels) => Float64Array.from(pixels, (level) => level / 255);

// Classify pixels (channel, row, column) with roles switched off, and keep everything that the pictures show.
function classify(pixels, off) {
  const result = forward(levelsOf(pixels), off);
  const complete = off.routing || off.transport ? forward(levelsOf(pixels)) : result;
  Object.assign(shown, { pixels, off, result, complete });
  meta.transport = off.transport ? 'identity' : meta.ownTransport ?? (meta.ownTransport = meta.transport);
  setArray('pixels', pixels, IMAGE_CHANNELS, IMAGE_SIDE, IMAGE_SIDE);
  let colours = firstColours(pixels);
  result.steps.forEach(({ source, target, weights, sent, tokens }, step) => {
    const [count, k] = shapeOf(`neighbours.${step}`);
    if (step > 0) colours = routedColours(step, weights, colours);
    setArray(`colour.${step}`, Uint8Array.from(colours, Math.round), count, 3);
    setArray(`weights.${step}`, weights, count, k, HEADS);
    setArray(`norm.${step}`, normsOf(tokens), count);
    setArray(`field.${step}`, target, count, HEADS, 4);
    setArray(`source_field.${step}`, source, source.length / (4 * HEADS), HEADS, 4);
    setArray(`features.${step}`, featuresOf(sent), sent.length / WIDTH, HEADS, CHANNELS_PER_HEAD, 4);
  });
  const { tokens } = result.steps[result.steps.length - 1];
  const heads = meta.pooling.heads;
  const pool = Float64Array.from({ length: result.pool.length / heads }, (_, v) => (
    result.pool.subarray(v * heads, (v + 1) * heads).reduce((sum, share) => sum + share, 0) / heads));
  setArray('pool', pool, pool.length);
  setArray(`evidence.${result.steps.length - 1}`, evidenceOf(tokens, result.pool, topOf(result.logits)), pool.length);
}

// Pixels of an embedded example.
function examplePixels(index) {
  const size = IMAGE_CHANNELS * IMAGE_SIDE * IMAGE_SIDE;
  return constant('examples').slice(index * size, (index + 1) * size);
}

classify(examplePixels(0), {}); // the pictures need arrays from the start
