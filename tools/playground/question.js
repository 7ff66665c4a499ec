// The question of the form: its fields, the link that carries it, and the commands that answer it.

const kDefaults = {
  source: "times", f: "1", b: "1", w: "1", comm: "", profile: "mixtral-8x7b-pp8", config: "", gpu: "h100",
  gpus: "16", batch: "64", seq: "4096", file: "", ranks: "4", microbatches: "8", limit: "", schedule: "",
  search: "quick",
};

// Fields that each source of costs uses; others are in no link.
const kFields = {
  times: ["f", "b", "w", "comm", "ranks", "microbatches", "limit", "schedule", "search"],
  profile: ["profile", "ranks", "microbatches", "limit", "schedule", "search"],
  model: ["config", "gpu", "gpus", "batch", "seq", "limit", "search"],
  file: ["file", "f", "b", "w", "comm"],
};
const kTexts = ["config", "file"];

async function through(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

// Texts are packed, so that a plan fits into a link.
async function packText(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(text));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}
async function unpackText(packed) {
  const binary = atob(packed.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(binary, (c) => c.charCodeAt(0));
  return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
}

async function linkOf(question) {
  const link = new URLSearchParams({ source: question.source });
  for (const field of kFields[question.source]) {
    if (question[field] === kDefaults[field]) continue;
    link.set(field, kTexts.includes(field) ? await packText(question[field]) : question[field]);
  }
  return "#" + link;
}

// Fields that a link lacks have their defaults; a text that cannot be unpacked is empty.
async function questionOf(hash) {
  const question = { ...kDefaults };
  for (const [field, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(field in kDefaults)) continue;
    question[field] = kTexts.includes(field) ? await unpackText(value).catch(() => "") : value;
  }
  if (!(question.source in kFields)) question.source = kDefaults.source;
  return question;
}

// A word as a shell needs it.
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replace(/'/g, "'\\''") + "'";
}
function lineOf(words) {
  return ["contraflow", ...words].map(quoted).join(" ");
}

function timesOf(question) {
  const words = [];
  for (const name of ["f", "b", "w", "comm"]) {
    if (question[name].trim()) words.push("--" + name, question[name].trim());
  }
  return words;
}

// The answers to a question: {files, tabs: [{name, title, steps: [{words, made}], needs}]}. Steps run in
// order and share files; a tab is left out where the file that it needs was not made.
function answersOf(question, profiles) {
  const files = {}, tabs = [], thorough = question.search === "thorough";
  const tab = (name, title, needs, ...steps) => tabs.push({ name, title, needs, steps });
  const ofPlan = (plan, times = []) => {
    tab("timeline", "Timeline", plan, { words: ["show", plan, "-o", "plan.html"], made: ["plan.html"] });
    tab("proof", "Proof", plan, { words: ["verify", plan], made: [] });
    tab("explain", "Explain", plan, { words: ["explain", plan, ...times], made: [] });
    tab("figures", "Figures", plan, { words: ["simulate", plan, ...times], made: [] });
  };

  if (question.source === "file") {
    const csv = !/^\s*\{/.test(question.file), name = csv ? "schedule.csv" : "plan.json";
    files[name] = question.file;
    ofPlan(name, csv || timesOf(question).join() !== timesOf(kDefaults).join() ? timesOf(question) : []);
    const words = csv ? ["import", name, "--from", "torch-csv", ...timesOf(question), "-o", "plan.json"]
                      : ["export", name, "--to", "torch-csv", "-o", "schedule.csv"];
    tab("convert", "Convert", name, { words, made: [csv ? "plan.json" : "schedule.csv"] });
    return { files, tabs };
  }

  if (question.source === "model") {
    files["config.json"] = question.config;
    const words = ["plan", "--model", "config.json", "--gpu", question.gpu, "--gpus", question.gpus,
                   "--global-batch", question.batch, "--seq", question.seq, "--budget", thorough ? "10s" : "500ms"];
    if (question.limit.trim()) words.push("--memory", question.limit.trim());
    tab("plan", "Plan", "config.json", { words: [...words, "-o", "best"], made: ["best/"] });
    ofPlan("best/plan.json");
    return { files, tabs };
  }

  const costs = question.source === "profile" ? ["--costs", question.profile] : timesOf(question);
  const frame = ["--ranks", question.ranks.trim(), "--microbatches", question.microbatches.trim(), ...costs];
  if (question.limit.trim()) frame.push("--memory-limit", question.limit.trim());
  const budget = ["--budget", thorough ? "2s" : "200ms"];
  const compare = ["compare", ...frame, ...budget];
  if (!question.schedule) {
    tab("compare", "Compare", "", { words: [...compare, "-o", "plan.json"], made: ["plan.json"] });
  } else {
    tab("compare", "Compare", "", { words: compare, made: [] });
    // Costs of stages are cut as compare cuts them, so that each schedule runs the same model.
    const layers = question.source === "profile" && /"layers"\s*:/.test(profiles[question.profile + ".json"]);
    const words = ["compile", "--schedule", question.schedule, ...frame];
    if (!layers) words.push("--partition", "even");
    if (question.schedule === "auto") words.push(...budget);
    tab("compile", "Compile", "", { words: [...words, "-o", "plan.json"], made: ["plan.json"] });
  }
  ofPlan("plan.json");
  return { files, tabs };
}
