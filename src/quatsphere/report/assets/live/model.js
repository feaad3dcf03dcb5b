// Constants of the model, and the arrays that the last forward pass left for the pictures.
async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const { meta, arrays } = readTensors(await unpack(bytesOf(document.getElementById('model').textContent)));
for (const [name, first] of Object.entries(meta.same)) arrays.set(name, arrays.get(first));
const hasFrames = true;
const images = [0];

const HEADS = meta.heads;
const CHANNELS_PER_HEAD = meta.channels;
const ROW = HEADS * CHANNELS_PER_HEAD; // one component of a token
const WIDTH = 4 * ROW; // a token
const constant = (name) => arrays.get(name)?.data;
const shapeOf = (name) => arrays.get(name).shape;
