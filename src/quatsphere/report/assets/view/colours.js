// Colour scales: viridis for amounts, blue to orange for signed values; both are colour-blind safe.
const VIRIDIS = ['440154', '482475', '414487', '355f8d', '2a788e', '21918c', '22a884', '44bf70', '7ad151', 'bddf26',
  'fde725'];
const BLUE_ORANGE = ['1461ad', '4a94d0', '93bcdc', 'c4c4c4', 'efb57f', 'e27a2e', 'b34a00'];
const AXES = ['#d55e00', '#009e73', '#56b4e9'];
const CHANNELS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7'];

const parse = (hex) => [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16));
const RAMPS = { amount: VIRIDIS.map(parse), signed: BLUE_ORANGE.map(parse) };

// The colour of a scale at a fraction in 0..1, as three levels and as CSS.
function mixed(kind, fraction) {
  const stops = RAMPS[kind];
  const place = Math.min(1, Math.max(0, fraction)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [stops[low], stops[low + 1]];
  return a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
}

const ramp = (kind, fraction) => `rgb(${mixed(kind, fraction).join(',')})`;

// The last step up to `step` whose target is this shell, or -1.
function lastUpdate(shell, step) {
  for (let earlier = step; earlier >= 0; earlier--) if (meta.steps[earlier].target === shell) return earlier;
  return -1;
}

const LAST_SHELL = shells.length - 1;
const LAST_STEP = meta.steps.length - 1;
const perStep = (family) => ({ image, shell, vertex, step }) => {
  const name = `${family}.${lastUpdate(shell, step)}`;
  return arrays.has(name) ? at(name, image, vertex) : null;
};

// Quantities that colour the vertices: value (null is grey), scale, and meaning.
const QUANTITIES = {
  image: {
    label: 'image colour', scale: null,
    meaning: 'Shell 1: mean of the 25 samples of each vertex. Inner shells: these colours, averaged with the '
      + 'routing weights.',
  },
  norm: {
    label: 'token norm', scale: 'amount', value: perStep('norm'),
    meaning: 'Norm of the token at each vertex after the last step that updated it.',
  },
  evidence: {
    label: 'class evidence', scale: 'signed', value: perStep('evidence'),
    meaning: 'Contribution of each vertex to the logit of the predicted class, also painted on the small image: orange '
      + 'for, blue against. After the last step it is exact (the contributions sum to the logit minus its bias)'
      + `${arrays.has('evidence.0') ? ', before that it is token times gradient' : '; this page shows it there only'}.`,
  },
  pool: {
    label: 'pool weight', scale: 'amount', zero: true,
    value: ({ image, shell, vertex }) => (shell === LAST_SHELL ? at('pool', image, vertex) : null),
    meaning: 'Weight of each vertex of the last shell in the pooled vector.',
  },
  drift: {
    label: 'drift', scale: 'amount', zero: true, needsFrames: true,
    value: ({ shell, vertex, head }) => at(`drift.${shell}`, vertex, head),
    meaning: 'Rotation angle (radians) between this head\'s base quaternion after and before training.',
  },
};

// Every value of a quantity on a shell in one image.
function valuesOn(quantity, state, image, shell) {
  return Array.from({ length: shell.count }, (_, vertex) => quantity.value({ ...state, image, shell: shell.index, vertex }));
}

// Smallest and largest value on the target shell over both images, so that the images can be compared.
function rangeOf(quantity, values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (quantity.scale === 'signed') return [-Math.max(-low, high, 1e-12), Math.max(-low, high, 1e-12)];
  return [quantity.zero ? 0 : low, Math.max(high, low + 1e-12)];
}

// The image's colours on a shell.
function imageColours(state, image, shell) {
  const name = `colour.${lastUpdate(shell.index, state.step)}`;
  return Array.from({ length: shell.count }, (_, vertex) => `rgb(${row(name, image, vertex)})`);
}

// colours[image][shell][vertex] as CSS, null where the quantity is undefined, and the ends of the scale.
function paintShells(state, shown) {
  const quantity = QUANTITIES[state.quantity];
  const colours = images.map(() => []);
  if (!quantity.scale) {
    for (const image of images) for (const shell of shown) colours[image][shell.index] = imageColours(state, image, shell);
    return { colours, range: null };
  }
  const values = images.map((image) => shown.map((shell) => valuesOn(quantity, state, image, shell)));
  const range = rangeOf(quantity, values.flatMap((byShell) => byShell[shown.length - 1]));
  const paint = (value) => (value === null || !range ? null : ramp(quantity.scale, (value - range[0]) / (range[1] - range[0])));
  for (const image of images) shown.forEach((shell, place) => { colours[image][shell.index] = values[image][place].map(paint); });
  return { colours, range };
}
