// Reader of what page_data.cc packs.

// The bytes of base64 text. atob would make a string of them first.
function decodeBase64(text) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const valueOf = new Uint8Array(128);
  for (let k = 0; k < 64; ++k) valueOf[digits.charCodeAt(k)] = k;
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  const bytes = new Uint8Array(text.length / 4 * 3 - padding);
  for (let at = 0, out = 0; at < text.length; at += 4) {
    const word = valueOf[text.charCodeAt(at)] << 18 | valueOf[text.charCodeAt(at + 1)] << 12 |
        valueOf[text.charCodeAt(at + 2)] << 6 | valueOf[text.charCodeAt(at + 3)];
    bytes[out++] = word >> 16;
    bytes[out++] = word >> 8;
    bytes[out++] = word;
  }
  return bytes;
}

class Varints {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  // Times may need more than the 32 bits that shifts have.
  next() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    for (let scale = 128; byte >= 128; scale *= 128) {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
    }
    return value;
  }
  nextSigned() {
    const value = this.next();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
}

// Calls visit(values, from, length) for each tuple of a packed list, in order.
function readTuples(text, visit) {
  const varints = new Varints(decodeBase64(text));
  const known = varints.next();
  const starts = new Uint32Array(known + 1);
  const values = [];
  for (let k = 0; k < known; ++k) {
    for (let left = varints.next(); left > 0; --left) values.push(varints.nextSigned());
    starts[k + 1] = values.length;
  }
  const dictionary = Float64Array.from(values);
  const own = new Float64Array(64);
  for (let left = varints.next(); left > 0; --left) {
    const code = varints.next();
    if (code > 0) {
      visit(dictionary, starts[code - 1], starts[code] - starts[code - 1]);
      continue;
    }
    const length = varints.next();
    for (let k = 0; k < length; ++k) own[k] = varints.nextSigned();
    visit(own, 0, length);
  }
}
