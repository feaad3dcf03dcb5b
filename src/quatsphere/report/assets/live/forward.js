// The forward pass of quatsphere/export/frozen_qsv.py for one image. Tokens are rows with the order (component, channel,
// head); fields have the order (vertex, head, component). Sums are taken in double precision.
const GELU_STEPS = 256;
const GELU_END = 6;
const geluTable = new Float64Array(2 * (2 * GELU_END * GELU_STEPS + 1));

// Normal distribution up to x: a power series times the density, all terms of one sign.
function normalBelow(x) {
  let [term, sum] = [Math.abs(x), Math.abs(x)];
  for (let n = 3; term > 1e-17 * sum; n += 2) {
    term *= (x * x) / n;
    sum += term;
  }
  return 0.5 + Math.sign(x) * density(x) * sum;
}

const density = (x) => Math.exp(-0.5 * x * x) / Math.sqrt(2 * Math.PI);

for (let i = 0; i < geluTable.length / 2; i++) {
  const x = i / GELU_STEPS - GELU_END;
  geluTable[2 * i] = x * normalBelow(x);
  geluTable[2 * i + 1] = (normalBelow(x) + x * density(x)) / GELU_STEPS;
}

// x Φ(x) by cubic interpolation between values and slopes of the table.
function gelu(x) {
  if (!(x > -GELU_END)) return x <= -GELU_END ? 0 : x;
  if (x >= GELU_END) return x;
  const place = (x + GELU_END) * GELU_STEPS;
  const i = 2 * Math.floor(place);
  const t = place - i / 2;
  const [s, a, b] = [1 - t, geluTable[i], geluTable[i + 2]];
  return s * s * ((1 + 2 * t) * a + t * geluTable[i + 1]) + t * t * ((1 + 2 * s) * b - s * geluTable[i + 3]);
}

// x @ W.T + bias for rows x (n, inner) and W (outer, inner).
function linear(x, weight, bias, inner) {
  const outer = weight.length / inner;
  const count = x.length / inner;
  const out = new Float64Array(count * outer);
  for (let v = 0; v < count; v++) {
    for (let o = 0; o < outer; o++) {
      let sum = bias ? bias[o] : 0;
      for (let i = 0, w = o * inner, r = v * inner; i < inner; i++) sum += weight[w + i] * x[r + i];
      out[v * outer + o] = sum;
    }
  }
  return out;
}

// x @ M for rows x (n, inner) and M (inner, outer).
function product(x, matrix, inner) {
  const outer = matrix.length / inner;
  const out = new Float64Array((x.length / inner) * outer);
  for (let v = 0; v < x.length / inner; v++) {
    for (let i = 0; i < inner; i++) {
      const value = x[v * inner + i];
      for (let o = 0; o < outer; o++) out[v * outer + o] += value * matrix[i * outer + o];
    }
  }
  return out;
}

function layerNorm(x, weight, bias) {
  for (let start = 0; start < x.length; start += WIDTH) {
    let [mean, variance] = [0, 0];
    for (let i = 0; i < WIDTH; i++) mean += x[start + i] / WIDTH;
    for (let i = 0; i < WIDTH; i++) variance += (x[start + i] - mean) ** 2 / WIDTH;
    const scale = 1 / Math.sqrt(variance + 1e-5);
    for (let i = 0; i < WIDTH; i++) x[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
  }
  return x;
}

// Bilinear samples (vertex, channel, sample) of an image (channel, pixel).
function samplesOf(image, channels) {
  const pixels = constant('sampler.pixels');
  const shares = constant('sampler.shares');
  const count = pixels.length / 4;
  const each = constant('projection.weight').length / WIDTH / channels;
  const area = image.length / channels;
  const out = new Float64Array(count * channels);
  for (let n = 0; n < count; n++) {
    for (let c = 0; c < channels; c++) {
      let sum = 0;
      for (let tap = n; tap < 4 * count; tap += count) sum += shares[tap] * image[c * area + pixels[tap]];
      out[(Math.floor(n / each) * channels + c) * each + (n % each)] = sum;
    }
  }
  return out;
}

// Rows interpolated from the source to the target shell; the same rows between shells of equal size.
function interpolated(x, step, width) {
  const indices = constant(`steps.${step}.interpolation.indices`);
  if (!indices) return x;
  const shares = constant(`steps.${step}.interpolation.shares`);
  const taps = shapeOf(`steps.${step}.interpolation.indices`)[1];
  const out = new Float64Array((indices.length / taps) * width);
  for (let m = 0; m < indices.length; m++) {
    const [to, from] = [Math.floor(m / taps) * width, indices[m] * width];
    for (let i = 0; i < width; i++) out[to + i] += shares[m] * x[from + i];
  }
  return out;
}

// normalize(base ⊗ exp(ω)) of a shell, from outputs of the network's first layer.
function fieldOf(step, end, shell, hidden) {
  const base = constant(`base.${shell}`);
  const { perturbed, bounded } = meta.rules[step][end];
  const own = `steps.${step}.${meta.rules[step].within ? 'source' : end}`;
  const out = Float64Array.from(base);
  if (!perturbed) return out;
  const [inner, outer, bias] = ['inner', 'outer', 'outer_bias'].map((part) => constant(`${own}.${part}`));
  const bound = bounded ? constant(`${own}.bound`)[0] : 0;
  const tangent = new Float64Array(3 * HEADS);
  for (let v = 0; v < base.length / (4 * HEADS); v++) {
    tangent.set(bias);
    for (let unit = 0; unit < WIDTH; unit++) {
      const value = gelu(hidden[v * WIDTH + unit] + inner[unit]);
      for (let i = unit % HEADS; i < 3 * HEADS; i += HEADS) tangent[i] += value * outer[unit * 3 * HEADS + i];
    }
    for (let h = 0; h < HEADS; h++) {
      const omega = [0, 1, 2].map((axis) => tangent[axis * HEADS + h]).map((x) => (bounded ? bound * Math.tanh(x) : x));
      const angle = Math.hypot(...omega);
      const sinc = angle > 1e-20 ? Math.sin(angle) / angle : 1;
      const place = 4 * (v * HEADS + h);
      const turned = multiply(base.subarray(place, place + 4), [Math.cos(angle), ...omega.map((x) => sinc * x)]);
      const length = normOf(turned);
      for (let c = 0; c < 4; c++) out[place + c] = turned[c] / length;
    }
  }
  return out;
}

// Source and target fields of a step; the first layer is linear, so it commutes with interpolation.
function fieldsOf(step, tokens) {
  const { source: from, target: to } = meta.steps[step];
  const { source, target, within, sharedFirst } = meta.rules[step];
  let hidden = source.perturbed ? linear(tokens, constant(`steps.${step}.source.first`), null, WIDTH) : null;
  const sources = fieldOf(step, 'source', from, hidden);
  if (within) return [sources, sources];
  if (target.perturbed && !sharedFirst) hidden = linear(tokens, constant(`steps.${step}.target.first`), null, WIDTH);
  return [sources, fieldOf(step, 'target', to, target.perturbed ? interpolated(hidden, step, WIDTH) : null)];
}

// Scores of one target and head for its neighbours, by routing; terms that are equal for all neighbours are left out.
const SCORES = {
  alignment: (step, q, t, source, places) => places.map((j) => dot(q, source.subarray(4 * j, 4 * j + 4))),
  absolute: (...inputs) => SCORES.alignment(...inputs).map(Math.abs),
  geometric: (step, q, t, source, places) => {
    const [own, theirs] = ['target', 'source'].map((end) => constant(`steps.${step}.${end}_directions`));
    const turned = sandwich(conjugate(q), [0, ...own.subarray(3 * t, 3 * t + 3)]).slice(1);
    return places.map((j) => 2 * dot(turned, theirs.subarray(3 * Math.floor(j / HEADS), 3 * Math.floor(j / HEADS) + 3)));
  },
};

// Routing weights (target, neighbour, head).
function weightsOf(step, routing, source, target) {
  const neighbours = constant(`neighbours.${step}`);
  const k = shapeOf(`neighbours.${step}`)[1];
  const beta = constant(`steps.${step}.beta`);
  const out = new Float64Array(neighbours.length * HEADS).fill(1 / k);
  if (routing === 'uniform') return out;
  for (let t = 0; t < neighbours.length / k; t++) {
    const chosen = Array.from(neighbours.subarray(t * k, (t + 1) * k));
    for (let h = 0; h < HEADS; h++) {
      const place = 4 * (t * HEADS + h);
      const scores = SCORES[routing](step, target.subarray(place, place + 4), t, source, chosen.map((j) => j * HEADS + h));
      const top = Math.max(...scores);
      const shares = scores.map((score) => Math.exp(beta[h] * (score - top)));
      const total = shares.reduce((sum, share) => sum + share, 0);
      shares.forEach((share, slot) => { out[(t * k + slot) * HEADS + h] = share / total; });
    }
  }
  return out;
}

// Maps from the vertex frame to the shared frame and back, by transport; null changes nothing.
const LIFTS = { sandwich, lift: sandwich, one_sided: multiply, identity: null, lower: null };
const LOWERINGS = {
  sandwich: (q, x) => sandwich(conjugate(q), x), lower: (q, x) => sandwich(conjugate(q), x),
  one_sided: (q, x) => multiply(conjugate(q), x), identity: null, lift: null,
};

// A map applied to every quaternion of every token.
function mapped(tokens, field, map) {
  if (!map) return tokens;
  const out = new Float64Array(tokens.length);
  for (let v = 0; v < tokens.length / WIDTH; v++) {
    for (let i = 0; i < ROW; i++) {
      const place = v * WIDTH + i;
      const q = 4 * (v * HEADS + (i % HEADS));
      const x = [tokens[place], tokens[place + ROW], tokens[place + 2 * ROW], tokens[place + 3 * ROW]];
      const y = map([field[q], field[q + 1], field[q + 2], field[q + 3]], x);
      for (let c = 0; c < 4; c++) out[place + c * ROW] = y[c];
    }
  }
  return out;
}

// Weighted sums of the neighbours' rows, (target, token).
function gathered(step, weights, rows) {
  const neighbours = constant(`neighbours.${step}`);
  const k = shapeOf(`neighbours.${step}`)[1];
  const out = new Float64Array((neighbours.length / k) * WIDTH);
  for (let edge = 0; edge < neighbours.length; edge++) {
    const [to, from] = [Math.floor(edge / k) * WIDTH, neighbours[edge] * WIDTH];
    for (let i = 0; i < WIDTH; i++) out[to + i] += weights[edge * HEADS + (i % HEADS)] * rows[from + i];
  }
  return out;
}

// Adds W ⊗ x to the quaternion at `to`; both steps say how far apart components are.
function addProduct(out, to, outStep, w, at, step, x, from, inStep) {
  const [a, b, c, d] = [w[at], w[at + step], w[at + 2 * step], w[at + 3 * step]];
  const [e, f, g, h] = [x[from], x[from + inStep], x[from + 2 * inStep], x[from + 3 * inStep]];
  out[to] += a * e - b * f - c * g - d * h;
  out[to + outStep] += a * f + b * e + c * h - d * g;
  out[to + 2 * outStep] += a * g - b * h + c * e + d * f;
  out[to + 3 * outStep] += a * h + b * g - c * f + d * e;
}

// The Hamilton block per head: down(gelu(up x)), plus a linear path if the model has one.
function hamiltonBlock(step, received) {
  const [up, down, skip] = ['up', 'down', 'skip'].map((part) => constant(`steps.${step}.${part}`));
  const Q = CHANNELS_PER_HEAD;
  const units = up.length / (HEADS * Q * 4);
  const hidden = new Float64Array(4 * units);
  const out = new Float64Array(received.length);
  for (let start = 0; start < received.length; start += WIDTH) {
    for (let h = 0; h < HEADS; h++) {
      hidden.fill(0);
      for (let q = 0; q < Q; q++) {
        const from = start + q * HEADS + h;
        for (let o = 0; o < units; o++) addProduct(hidden, 4 * o, 1, up, ((h * Q + q) * units + o) * 4, 1, received, from, ROW);
        for (let p = 0; skip && p < Q; p++) addProduct(out, start + p * HEADS + h, ROW, skip, (h * Q + q) * 4 * Q + p, Q, received, from, ROW);
      }
      for (let i = 0; i < hidden.length; i++) hidden[i] = gelu(hidden[i]);
      for (let o = 0; o < units; o++) {
        for (let p = 0; p < Q; p++) addProduct(out, start + p * HEADS + h, ROW, down, (h * units + o) * 4 * Q + p, Q, hidden, 4 * o, 1);
      }
    }
  }
  return out;
}

// Pool weights (vertex, head or 1) of the last tokens.
function poolWeights(tokens) {
  const count = tokens.length / WIDTH;
  const { mean, heads } = meta.pooling;
  if (mean) return new Float64Array(count).fill(1 / count);
  const axis = constant('pool.axis');
  const scores = new Float64Array(count * heads);
  for (let i = 0; i < tokens.length; i++) scores[Math.floor(i / WIDTH) * heads + (i % heads)] += tokens[i] * axis[i % WIDTH];
  for (let h = 0; h < heads; h++) {
    let [top, total] = [-Infinity, 0];
    for (let i = h; i < scores.length; i += heads) top = Math.max(top, scores[i]);
    for (let i = h; i < scores.length; i += heads) total += scores[i] = Math.exp(scores[i] - top);
    for (let i = h; i < scores.length; i += heads) scores[i] /= total;
  }
  return scores;
}

// Logits and every intermediate of an image with levels in [0, 1], order (channel, row, column). `off` names roles that
// are switched off: routing becomes uniform, transport the identity.
function forward(levels, off = {}) {
  const [mean, std] = [constant('mean'), constant('std')];
  const area = levels.length / mean.length;
  const normal = Float64Array.from(levels, (level, i) => (level - mean[Math.floor(i / area)]) / std[Math.floor(i / area)]);
  const samples = samplesOf(normal, mean.length);
  const columns = constant('projection.weight').length / WIDTH;
  const embedded = linear(samples, constant('projection.weight'), constant('projection.bias'), columns);
  let tokens = layerNorm(embedded, constant('norm.weight'), constant('norm.bias'));
  const steps = meta.rules.map((rules, step) => {
    const [source, target] = fieldsOf(step, tokens);
    const weights = weightsOf(step, off.routing ? 'uniform' : rules.routing, source, target);
    const valueMap = constant(`steps.${step}.value_map`);
    const sent = valueMap ? product(tokens, valueMap, WIDTH) : tokens;
    const transport = off.transport ? 'identity' : rules.transport;
    const total = gathered(step, weights, mapped(sent, source, LIFTS[transport]));
    const update = hamiltonBlock(step, mapped(total, target, LOWERINGS[transport]));
    const residual = interpolated(tokens, step, WIDTH);
    const gate = constant(`steps.${step}.gate`)?.[0] ?? 1;
    tokens = update.map((value, i) => value + gate * residual[i]);
    return { source, target, weights, sent, tokens };
  });
  const pool = poolWeights(tokens);
  const pooled = new Float64Array(WIDTH);
  const heads = meta.pooling.heads;
  for (let i = 0; i < tokens.length; i++) pooled[i % WIDTH] += pool[Math.floor(i / WIDTH) * heads + (i % heads)] * tokens[i];
  const logits = linear(pooled, constant('classifier.weight'), constant('classifier.bias'), WIDTH);
  return { logits, pool, steps };
}
