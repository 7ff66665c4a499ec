// The worker: compiles the program once, and runs it as often as it is asked, each time in an instance
// of its own. A message {packed, profiles} starts it, {id, words, files, made} runs a command.
"use strict";

const started = {};
const ready = new Promise((resolve, reject) => Object.assign(started, { resolve, reject }));

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(stream).arrayBuffer());
}

// Gathers bytes that come one by one.
class Gathered {
  constructor() {
    this.bytes = new Uint8Array(1 << 16);
    this.length = 0;
  }
  add(byte) {
    if (byte === null) return;
    if (this.length === this.bytes.length) {
      const more = new Uint8Array(2 * this.length);
      more.set(this.bytes);
      this.bytes = more;
    }
    this.bytes[this.length++] = byte;
  }
  text() {
    return new TextDecoder().decode(this.bytes.subarray(0, this.length));
  }
}

// Runs main with these words. `files` are names and texts in the current folder; `made` names those
// to return afterwards, a name that ends in / all files of that folder.
async function run({ words, files, made }) {
  const { module, profiles } = await ready;
  const output = new Gathered(), errors = new Gathered();
  const program = await Contraflow({
    instantiateWasm(imports, done) {
      WebAssembly.instantiate(module, imports).then((instance) => done(instance, module));
      return {};
    },
    stdin: () => null,
    stdout: (byte) => output.add(byte),
    stderr: (byte) => errors.add(byte),
    preRun: [(self) => { self.ENV.CONTRAFLOW_PROFILES = "/profiles"; }],
  });
  const { FS } = program;
  FS.mkdir("/profiles");
  for (const [name, text] of Object.entries(profiles)) FS.writeFile("/profiles/" + name, text);
  FS.mkdir("/work");
  FS.chdir("/work");
  for (const [name, text] of Object.entries(files)) {
    if (name.includes("/")) FS.mkdirTree("/work/" + name.slice(0, name.lastIndexOf("/")));
    FS.writeFile(name, text);
  }
  const began = performance.now();
  let code;
  try {
    code = program.callMain(words);
  } catch (error) {
    // An abort; usually the memory of 32 bits is full.
    errors.add(10);
    for (const byte of new TextEncoder().encode(`contraflow: error: ${error}\n`)) errors.add(byte);
    code = 70;
  }
  const kept = {};
  for (const name of made) {
    const folder = name.endsWith("/");
    if (!FS.analyzePath(name).exists) continue;
    const names = folder ? FS.readdir(name).filter((n) => !n.startsWith(".")).map((n) => name + n) : [name];
    for (const n of names) kept[n] = FS.readFile(n, { encoding: "utf8" });
  }
  return { code, output: output.text(), errors: errors.text(), files: kept,
           milliseconds: performance.now() - began };
}

onmessage = async ({ data }) => {
  if (data.packed) {
    unpack(data.packed).then((module) => started.resolve({ module, profiles: data.profiles }), started.reject);
    return;
  }
  try {
    postMessage({ id: data.id, answer: await run(data) });
  } catch (error) {
    postMessage({ id: data.id, error: error.message ?? String(error) });
  }
};
