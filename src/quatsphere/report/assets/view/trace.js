// The trace of the page's images.
const { meta, arrays } = readTensors(bytesOf(document.getElementById('trace').textContent));
const hasFrames = arrays.has('field.0');
const images = meta.images.map((_, index) => index);
