// Probabilities, the switches of the two roles, and the comparison with the model's own logits.
const CLASSES = meta.file.classes;
const MOST_BARS = 10;
const TOLERANCE = 1e-4;
const ROLES = ['routing', 'transport'];
const IDLE = { routing: 'uniform', transport: 'identity' };

const switches = () => Object.fromEntries(ROLES.map((role) => [role, !byId(role).checked && !byId(role).disabled]));
const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Bars in the order of the classes, or the most probable ones where there are many classes.
function writeBars(found, complete) {
  const order = CLASSES.map((_, label) => label);
  if (CLASSES.length > MOST_BARS + 2) order.sort((a, b) => found[b] - found[a]).splice(MOST_BARS);
  const best = topOf(found);
  const changed = shown.result !== shown.complete;
  byId('bars').replaceChildren(...order.map((label) => {
    const line = element('li', undefined, label === best ? 'first' : '');
    line.append(element('span', CLASSES[label], 'name'));
    const track = line.appendChild(element('span', undefined, 'track'));
    track.appendChild(element('span', undefined, 'share-of')).style.width = `${100 * found[label]}%`;
    if (changed) track.appendChild(element('span', undefined, 'complete')).style.left = `${100 * complete[label]}%`;
    line.append(element('span', percent(found[label]), 'value'));
    return line;
  }));
}

function writeAnswer() {
  const found = probabilitiesOf(shown.result.logits);
  const complete = probabilitiesOf(shown.complete.logits);
  const [best, own] = [topOf(found), topOf(complete)];
  writeBars(found, complete);
  byId('answer').replaceChildren(element('b', CLASSES[best]), percent(found[best]));
  const off = ROLES.filter((role) => shown.off[role]);
  const effect = byId('effect');
  if (!off.length) effect.replaceChildren('Both roles are on: this is the trained model.');
  else if (best !== own) effect.replaceChildren(`Without ${off.join(' and ')}: `, element('b', CLASSES[best]), ` instead of ${CLASSES[own]} (${percent(complete[own])}, orange marks).`);
  else effect.replaceChildren(`Without ${off.join(' and ')}: the same answer, ${percent(found[best])} instead of ${percent(complete[own])} (orange marks).`);
}

// Text and pictures of the classified image.
function refresh() {
  pictures.length = 0;
  writeAnswer();
  change({});
}

// Logits of the examples against those of the model in torch.
function check() {
  const count = meta.examples.length;
  let most = 0;
  let others = 0;
  for (let index = 0; index < count; index++) {
    const expected = constant('reference').subarray(index * CLASSES.length, (index + 1) * CLASSES.length);
    const { logits } = forward(levelsOf(examplePixels(index)));
    most = Math.max(most, ...logits.map((logit, i) => Math.abs(logit - expected[i])));
    if (topOf(logits) !== topOf(expected)) others++;
  }
  const right = most <= TOLERANCE && others === 0;
  document.documentElement.dataset.check = right ? 'same' : 'different';
  byId('check').textContent = `${right ? '✓' : '✗'} Logits of ${plural(count, 'example')} within ${most.toExponential(1)} of torch.`;
  byId('warning').hidden = right;
  byId('warning').textContent = `This page does not compute what its model does: logits differ by ${most.toExponential(1)}. `
    + 'The file is damaged or the browser is at fault; export it again.';
}

for (const role of ROLES) {
  const input = byId(role);
  input.disabled = meta.rules.every((rules) => rules[role] === IDLE[role]);
  input.checked = !input.disabled;
  if (input.disabled) input.parentElement.title = `This model was trained without it (${meta[role]})`;
  input.addEventListener('input', () => {
    classify(shown.pixels, switches());
    refresh();
  });
}
byId('bars').classList.toggle('named', CLASSES.some((name) => name.length > 2));
if (CELLS) listenToPad();
listenToPictures();
new ResizeObserver(drawPad).observe(pad);
byId('theme').addEventListener('click', drawPad);
showExample(0);
setTimeout(check, 50);

// For the browser's console: the pixels on show, levels 0 to 255 (channel, row, column), and the forward pass, for example
// quatsphere.run(quatsphere.pixels(), { transport: true }).logits without transport.
window.quatsphere = { meta, pixels: () => Array.from(shown.pixels), run: (pixels, off) => forward(levelsOf(pixels), off) };
