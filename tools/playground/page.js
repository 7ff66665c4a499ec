// The page: form, worker, tabs. `playground` on the window is for tests.

const kSchedules = ["gpipe", "1f1b", "interleaved-1f1b", "combined-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half",
                    "v-min", "chimera", "dualpipe", "dualpipe-v", "auto"];
const kGpus = ["a100", "a100-40gb", "a800", "b200", "b300", "gb200", "gb300", "h20", "h100", "h200", "h800",
               "l40s", "mi300x", "mi355x"];
const kExample = `{
  "model_type": "llama",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "num_attention_heads": 32,
  "num_key_value_heads": 8,
  "num_hidden_layers": 32,
  "tie_word_embeddings": false,
  "vocab_size": 128256
}
`;
const kSample = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";

const at = (id) => document.getElementById(id);

function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// The worker and the commands that it has not answered yet.
class Program {
  constructor(packed, profiles, source) {
    Object.assign(this, { packed, profiles, waiting: new Map(), number: 0 });
    this.url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.begin();
  }
  begin() {
    this.worker = new Worker(this.url);
    this.worker.onmessage = ({ data }) => {
      const { resolve, reject } = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error) reject(new Error(data.error)); else resolve(data.answer);
    };
    this.worker.onerror = (event) => {
      for (const { reject } of this.waiting.values()) reject(new Error(event.message));
      this.waiting.clear();
    };
    this.worker.postMessage({ packed: this.packed, profiles: this.profiles });
  }
  run(words, files = {}, made = []) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.number, { resolve, reject });
      this.worker.postMessage({ id: this.number, words, files, made });
    });
  }
  // Ends what runs; its promises stay open.
  stop() {
    if (!this.waiting.size) return;
    this.worker.terminate();
    this.waiting.clear();
    this.begin();
  }
}

class Page {
  constructor() {
    this.profiles = JSON.parse(at("profiles").textContent);
    this.program = new Program(at("wasm").textContent, this.profiles, at("worker").textContent);
    this.form = at("form");
    this.asked = 0;
    this.answers = [];
    this.chosen = "";
    this.first = null;
    this.done = false;
    this.shown = null;
  }

  start() {
    const fill = (name, values) =>
      this.form.elements[name].append(...values.map((value) => make("option", { value, textContent: value })));
    fill("profile", Object.keys(this.profiles).map((name) => name.replace(/\.json$/, "")));
    fill("gpu", kGpus);
    fill("schedule", kSchedules);
    this.form.addEventListener("change", () => this.showFields());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.question());
      // On a narrow window the answers are below the form.
      if (at("tabs").offsetTop > this.form.offsetTop + 40) at("tabs").scrollIntoView({ behavior: "smooth" });
    });
    for (const input of this.form.querySelectorAll("input[type=file]")) {
      input.addEventListener("change", async () => {
        if (input.files[0]) this.form.elements[input.dataset.into].value = await input.files[0].text();
        input.value = "";
      });
    }
    at("example").onclick = () => { this.form.elements.config.value = kExample; };
    at("sample").onclick = () => { this.form.elements.file.value = kSample; };
    at("stop").onclick = () => this.stop();
    at("link").onclick = async (event) => {
      const link = await linkOf(this.question());
      this.copy(event.target, location.href.replace(/#.*/, "") + link);
    };
    at("theme").onclick = () => this.setTheme(!this.dark);
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
    const open = async () => {
      const question = await questionOf(location.hash);
      this.fill(question);
      this.ask(question);
    };
    addEventListener("hashchange", open);
    open();
  }

  setTheme(dark) {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    at("theme").textContent = dark ? "Light" : "Dark";
  }

  fill(question) {
    for (const [name, value] of Object.entries(question)) this.form.elements[name].value = value;
    this.showFields();
  }
  question() {
    const question = {};
    for (const name of Object.keys(kDefaults)) question[name] = this.form.elements[name].value;
    return question;
  }
  showFields() {
    const { source } = this.question();
    for (const part of this.form.querySelectorAll("[data-for]")) {
      part.hidden = !part.dataset.for.split(" ").includes(source);
    }
    this.form.elements.limit.placeholder = source === "model" ? "all of the GPU" : "as 1F1B (1x)";
  }

  // Answers a question tab by tab. A later question ends it.
  async ask(question) {
    const asked = ++this.asked;
    this.program.stop();
    this.done = false;
    this.answers = [];
    this.shown = null;
    const link = await linkOf(question);
    if (asked !== this.asked) return;
    if (link !== location.hash) history.replaceState(null, "", link);
    const { files, tabs } = answersOf(question, this.profiles);
    for (const tab of tabs) this.answers.push({ ...tab, steps: [] });
    if (!tabs.some((tab) => tab.name === this.chosen)) this.chosen = tabs[0].name;
    at("stop").hidden = false;
    const began = performance.now();
    for (const [index, tab] of tabs.entries()) {
      const answer = this.answers[index];
      if (tab.needs && !(files[tab.needs] ?? "").trim()) {
        answer.missing = true;
        continue;
      }
      for (const { words, made } of tab.steps) {
        at("state").textContent = `Running contraflow ${words[0]} ...`;
        this.showTabs();
        let given;
        try {
          given = await this.program.run(words, files, made);
        } catch (error) {
          given = { code: 70, output: "", errors: error.message + "\n", files: {} };
        }
        if (asked !== this.asked) return;
        if (this.first === null) this.first = performance.now();
        Object.assign(files, given.files);
        answer.steps.push({ line: lineOf(words), words, ...given });
      }
      this.showTabs();
    }
    this.finish(question.source === "file" && !question.file.trim() ? "Paste a schedule, or open a file, then Run."
                : question.source === "model" && !question.config.trim() ? "Paste a config.json, or open a file, then Run."
                : `Answered in ${((performance.now() - began) / 1000).toFixed(2)} s.`);
  }
  stop() {
    ++this.asked;
    this.program.stop();
    for (const answer of this.answers) answer.missing ||= !answer.steps.length;
    this.finish("Stopped.");
  }
  finish(words) {
    at("state").textContent = words;
    at("stop").hidden = true;
    this.done = true;
    this.showTabs();
  }

  showTabs() {
    at("tabs").replaceChildren(...this.answers.map((answer) => {
      const tab = make("button", { type: "button", textContent: answer.title, disabled: !answer.steps.length,
                                   className: answer.steps.some((step) => step.code) ? "flaw" : "" });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", answer.name === this.chosen);
      tab.onclick = () => {
        this.chosen = answer.name;
        this.showTabs();
      };
      return tab;
    }));
    const answer = this.answers.find((a) => a.name === this.chosen);
    const key = answer && answer.steps.length ? answer : null;
    if (key === this.shown && key) return;
    this.shown = key;
    at("answer").replaceChildren(...(key ? key.steps.map((step) => this.stepElement(step)) : []));
  }

  stepElement(step) {
    const copy = make("button", { type: "button", textContent: "Copy" });
    copy.onclick = () => this.copy(copy, step.line);
    const element = make("div", { className: "step" },
      make("div", { className: "command" }, make("pre", { textContent: step.line }), copy));
    const page = step.files["plan.html"];
    if (page) element.append(this.frame(page));
    if (step.output) {
      const output = make("pre", { className: "output" + (step.words[0] === "verify" && !step.code ? " ok" : "") });
      output.append(...this.lines(step.output, step.words[0] === "compare"));
      element.append(output);
    }
    if (step.errors) {
      element.append(make("pre", { className: "errors" + (step.code ? "" : " fine"), textContent: step.errors }));
    }
    const names = Object.keys(step.files);
    if (names.length) element.append(this.downloads(step, names));
    return element;
  }

  frame(page) {
    const frame = make("iframe", { title: "timeline of the plan", srcdoc: page });
    frame.setAttribute("sandbox", "allow-scripts");
    return frame;
  }

  // Rows of tables keep their columns, other lines wrap. Names of schedules in the table of compare are
  // links to their plans.
  lines(text, links) {
    let table = false;
    return text.replace(/\n$/, "").split("\n").map((line) => {
      const name = line.match(/^[\w-]*/)[0];
      const row = make("div", { className: /\S {2,}\S/.test(line) ? "row" : "" });
      if (links && table && kSchedules.includes(name)) {
        const take = make("button", { type: "button", className: "take", textContent: name,
                                      title: "compile this schedule" });
        take.onclick = () => {
          this.form.elements.schedule.value = name;
          this.chosen = "timeline";
          this.ask(this.question());
        };
        row.append(take, line.slice(name.length));
      } else {
        table = (table && line !== "") || name === "schedule";
        row.textContent = line || "\n";
      }
      return row;
    });
  }

  downloads(step, names) {
    const row = make("div", { className: "files" }, "files:");
    const add = (name, text) => {
      const link = make("a", { href: "#", textContent: name.split("/").pop() });
      link.onclick = async (event) => {
        event.preventDefault();
        const content = typeof text === "string" ? text : await text();
        const url = URL.createObjectURL(new Blob([content]));
        make("a", { href: url, download: link.textContent }).click();
        setTimeout(() => URL.revokeObjectURL(url), 1000);
      };
      row.append(link);
    };
    for (const name of names) add(name, step.files[name]);
    if (step.files["plan.html"]) {
      const plan = step.words[1], files = { [plan]: this.fileOf(plan) };
      add("plan.svg", async () => (await this.program.run(["show", plan, "-o", "plan.svg"], files, ["plan.svg"])).files["plan.svg"]);
    }
    return row;
  }
  fileOf(name) {
    for (const { steps } of this.answers) {
      for (const { files } of steps) if (name in files) return files[name];
    }
    return this.form.elements.file.value;
  }

  async copy(button, text) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages from a file may have no clipboard.
      const area = make("textarea", { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  }
}

function start() {
  const page = new Page();
  window.playground = page;
  page.linkOf = linkOf;
  page.start();
}
