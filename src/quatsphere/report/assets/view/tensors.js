// Tensors of a safetensors file in base64, as typed arrays; fixed point is converted when a number is read.
const KINDS = { F32: Float32Array, U32: Uint32Array, U16: Uint16Array, I16: Int16Array, U8: Uint8Array };

function bytesOf(text) {
  const raw = atob(text.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

function readTensors(bytes) {
  const body = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, body)));
  const meta = JSON.parse(header.__metadata__.view);
  delete header.__metadata__;
  const arrays = new Map();
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    const data = new KINDS[dtype](bytes.buffer.slice(body + start, body + end));
    arrays.set(name, { data, shape, scale: meta.scales[name] ?? 1 });
  }
  return { meta, arrays };
}

// The number at the given indices of an array.
function at(name, ...indices) {
  const { data, shape, scale } = arrays.get(name);
  let place = 0;
  for (let axis = 0; axis < shape.length; axis++) place = place * shape[axis] + indices[axis];
  return data[place] * scale;
}

// The last axis of an array as numbers: a quaternion, a colour, a position.
function row(name, ...indices) {
  const { data, shape, scale } = arrays.get(name);
  const length = shape[shape.length - 1];
  let place = 0;
  for (let axis = 0; axis < shape.length - 1; axis++) place = place * shape[axis] + indices[axis];
  return Array.from(data.subarray(place * length, (place + 1) * length), (value) => value * scale);
}

// Neighbours (indices into the source shell) of a target.
function neighboursOf(step, target) {
  return row(`neighbours.${step}`, target);
}

const weightOf = (image, step, target, slot, head) => at(`weights.${step}`, image, target, slot, head);
