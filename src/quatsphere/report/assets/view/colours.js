// Colour scales: viridis for amounts, blue to orange for what may have either sign; both safe for all eyes.
const VIRIDIS = ['440154', '482475', '414487', '355f8d', '2a788e', '21918c', '22a884', '44bf70', '7ad151', 'bddf26',
  'fde725'];
const BLUE_ORANGE = ['1461ad', '4a94d0', '93bcdc', 'c4c4c4', 'efb57f', 'e27a2e', 'b34a00'];
const AXES = ['#d55e00', '#009e73', '#56b4e9'];
const CHANNELS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7'];

const parse = (hex) => [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16));
const RAMPS = { amount: VIRIDIS.map(parse), signed: BLUE_ORANGE.map(parse) };

// A colour of the scale at share 0..1.
function ramp(kind, share) {
  const stops = RAMPS[kind];
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  const [a, b] = [stops[low], stops[low + 1]];
  const mixed = a.map((value, i) => Math.round(value + (b[i] - value) * (place - low)));
  return `rgb(${mixed.join(',')})`;
}

// The step that last wrote on a shell, seen after `step`; -1 before any did.
function lastWriter(shell, step) {
  for (let earlier = step; earlier >= 0; earlier--) if (meta.steps[earlier].target === shell) return earlier;
  return -1;
}

const LAST_SHELL = shells.length - 1;
const LAST_STEP = meta.steps.length - 1;
const perStep = (family) => ({ image, shell, vertex, step }) => at(`${family}.${lastWriter(shell, step)}`, image, vertex);

// What a vertex can be coloured by: its value (none: grey), the scale, and what it means.
const QUANTITIES = {
  image: {
    label: 'image colour', scale: null,
    meaning: 'Shell 1: mean of the 25 samples of each vertex. Further in: what the routing weights carry of it.',
  },
  norm: {
    label: 'token norm', scale: 'amount', value: perStep('norm'),
    meaning: 'Length of the token at each vertex after the last step that wrote there.',
  },
  evidence: {
    label: 'class evidence', scale: 'signed', value: perStep('evidence'),
    meaning: 'What each vertex adds to the logit of the predicted class: after the last step exactly (the shares sum '
      + 'to the logit minus its bias), before it token times gradient.',
  },
  pool: {
    label: 'pool weight', scale: 'amount', zero: true,
    value: ({ image, shell, vertex }) => (shell === LAST_SHELL ? at('pool', image, vertex) : null),
    meaning: 'How much each vertex of the last shell counts in the pooled vector.',
  },
  drift: {
    label: 'drift', scale: 'amount', zero: true, needsFrames: true,
    value: ({ shell, vertex, head }) => at(`drift.${shell}`, vertex, head),
    meaning: 'Rotation angle (radians) between this head\'s base quaternion and its start before training.',
  },
};

// Every value of a quantity on a shell in one image.
function valuesOn(quantity, state, image, shell) {
  return Array.from({ length: shell.count }, (_, vertex) => quantity.value({ ...state, image, shell: shell.index, vertex }));
}

// Smallest and largest value on the target shell over both images: one scale, so that the images can be compared.
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
  const name = `colour.${lastWriter(shell.index, state.step)}`;
  return Array.from({ length: shell.count }, (_, vertex) => `rgb(${row(name, image, vertex)})`);
}

// colours[image][shell][vertex] as CSS, null where the quantity is not defined; and the ends of the scale.
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
