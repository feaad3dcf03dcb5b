// Quaternions (real part first), the camera, and the map from model coordinates to the screen.
const conjugate = ([w, x, y, z]) => [w, -x, -y, -z];

function multiply([aw, ax, ay, az], [bw, bx, by, bz]) {
  return [
    aw * bw - ax * bx - ay * by - az * bz,
    aw * bx + ax * bw + ay * bz - az * by,
    aw * by - ax * bz + ay * bw + az * bx,
    aw * bz + ax * by - ay * bx + az * bw,
  ];
}

const sandwich = (q, x) => multiply(multiply(q, x), conjugate(q));
const relative = (qi, qj) => multiply(conjugate(qi), qj);
const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const normOf = (v) => Math.sqrt(dot(v, v));

// Rotation angle in degrees between two unit quaternions, independent of their signs; accurate near 0.
function angleBetween(a, b) {
  const sign = dot(a, b) < 0 ? -1 : 1;
  const apart = normOf(a.map((value, i) => value - sign * b[i]));
  const together = normOf(a.map((value, i) => value + sign * b[i]));
  return (4 * Math.atan2(apart, together) * 180) / Math.PI;
}

const axesOf = (q) => [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]].map((unit) => sandwich(q, unit).slice(1));

// The model's x, y, z as (right, up, towards the eye). On the sphere longitude 0, the middle of the image, faces
// the viewer and image rows go down; both maps are rotations, so nothing is mirrored.
const flat = meta.layout === 'plane';
const SHEET = 0.85;
const toScreenAxes = flat ? ([x, y, z]) => [x, -y, -z] : ([x, y, z]) => [z, -y, x];

// Shells for drawing: places in screen axes, spacing of the vertices, image coordinates of each vertex.
const shells = [];
for (let index = 0; arrays.has(`positions.${index}`); index++) {
  const { shape: [count] } = arrays.get(`positions.${index}`);
  const given = Array.from({ length: count }, (_, vertex) => row(`positions.${index}`, vertex));
  shells.push(flat ? sheetOf(index, given) : globeOf(index, given));
}

function globeOf(index, given) {
  const radius = normOf(given[0]);
  const imageCoords = given.map(([x, y, z]) => [Math.atan2(z, x) / Math.PI, y / radius]);
  const spacing = radius * Math.sqrt((4 * Math.PI) / given.length);
  return { index, count: given.length, places: given.map(toScreenAxes), imageCoords, radius, spacing };
}

// Planes are drawn one behind the other, the first at the back.
function sheetOf(index, given) {
  const last = meta.steps[meta.steps.length - 1].target;
  const depth = Math.min(0.8, 2.2 / Math.max(1, last)) * (index - last / 2);
  const places = given.map(([x, y]) => [SHEET * x, -SHEET * y, depth]);
  return { index, count: given.length, places, imageCoords: given, radius: 1, depth, spacing: SHEET * Math.sqrt(4 / given.length) };
}

// A camera on a sphere around the centre: yaw about the upright axis, then pitch, then perspective.
const FACING = flat ? { yaw: -0.7, pitch: 0.3, zoom: 0.74 } : { yaw: 0.3, pitch: 0.22, zoom: 1 };
const DISTANCE = 3.6;
const camera = { ...FACING };
let rotation = [];

function aim(changes) {
  Object.assign(camera, changes);
  const [sy, cy, sp, cp] = [Math.sin(camera.yaw), Math.cos(camera.yaw), Math.sin(camera.pitch), Math.cos(camera.pitch)];
  rotation = [cy, 0, sy, sy * sp, cp, -cy * sp, -sy * cp, sp, cy * cp];
}
aim(FACING);

// Rotation of screen axes to the camera, and its inverse.
function rotate([x, y, z]) {
  const [a, b, c, d, e, f, g, h, i] = rotation;
  return [a * x + b * y + c * z, d * x + e * y + f * z, g * x + h * y + i * z];
}

function rotateBack([x, y, z]) {
  const [a, b, c, d, e, f, g, h, i] = rotation;
  return [a * x + d * y + g * z, b * x + e * y + h * z, c * x + f * y + i * z];
}

// Projection onto a canvas that a shell of this radius fills: screen axes -> [x, y, towards, pixels per unit].
function lensOf(width, height, radius) {
  const unit = (0.42 / radius) * Math.min(width, height) * camera.zoom * Math.sqrt(DISTANCE * DISTANCE - radius * radius);
  return (place) => {
    const [across, up, towards] = rotate(place);
    const scale = unit / (DISTANCE - towards);
    return [width / 2 + across * scale, height / 2 - up * scale, towards, scale];
  };
}

// Whether a vertex is on the visible side of its shell; all vertices of a plane are.
const isVisible = (shell, towards) => flat || towards > (shell.radius * shell.radius) / DISTANCE;
