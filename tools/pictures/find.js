// Search: "s3 m7", "BW m2", "r1 F", "rank 3 l0".

// Query of the words, or null where they are none of these.
function parseQuery(text) {
  const query = {};
  const words = text.trim().replace(/\brank\s+(\d+)/gi, "r$1").split(/[\s,]+/).filter(Boolean);
  for (const word of words) {
    const number = /^([smlr#])(\d+)$/i.exec(word);
    const op = OPS.findIndex((known) => known.name === word.toUpperCase());
    const kinds = OPS.map((known, k) => k).filter((k) => OPS[k].name.startsWith(word.toUpperCase()));
    if (number) query[number[1].toLowerCase()] = Number(number[2]);
    else if (op >= 0) query.ops = new Set([op]);
    else if (word.length > 1 && kinds.length > 0) query.ops = new Set(kinds);
    else if (word !== "+") return null;
  }
  return words.length > 0 ? query : null;
}

// At most this many are kept: nobody goes through more one by one.
const MOST_FOUND = 20000;

function findInstructions(plans, query) {
  const found = [];
  plans.forEach((plan, p) => {
    const fits = (id) => {
      const is = (key, value) => query[key] === undefined || query[key] === value;
      const cell = (stage, microbatch) => is("s", stage) && is("m", microbatch);
      return is("r", plan.rank[id]) && is("l", plan.layer[id]) && is("#", plan.index(id)) &&
          (!query.ops || query.ops.has(plan.op[id])) &&
          (cell(plan.stage[id], plan.microbatch[id]) ||
           (plan.op[id] === OP.FB && cell(plan.backStage[id], plan.backMicrobatch[id])));
    };
    for (let id = 0; id < plan.count && found.length < MOST_FOUND; ++id) {
      // A user who does not ask for messages looks for work.
      if (!query.ops && plan.lane(id) === MESSAGE) continue;
      if (fits(id)) found.push({p, id});
    }
  });
  const time = ({p, id}) => (plans[p].runs(id) ? plans[p].start[id] : Infinity);
  return found.sort((a, b) => a.p - b.p || time(a) - time(b) || a.id - b.id);
}
