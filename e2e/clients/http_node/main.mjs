// Sends requests to a router with fetch and node:http: `node main.mjs URL < cases.json`. Prints the
// answers as JSON.
import { request } from "node:http";
import { text } from "node:stream/consumers";

const base = process.argv[2];
const cases = JSON.parse(await text(process.stdin));

const targetOf = ({ target, parameters }) =>
  Object.keys(parameters).length ? `${target}?${new URLSearchParams(parameters)}` : target;

async function askByFetch(asked) {
  const { method, headers, body } = asked;
  const response = await fetch(base + targetOf(asked), { method, headers, body: body || undefined });
  return { status: response.status, body: await response.text(), error: "" };
}

function askByHttp(asked) {
  const { method, headers, body } = asked;
  const { hostname: host, port } = new URL(base);
  return new Promise((resolve, reject) => {
    const sent = request({ host, port, path: targetOf(asked), method, headers }, async (response) =>
      resolve({ status: response.statusCode, body: await text(response), error: "" }),
    );
    sent.on("error", reject);
    sent.end(body);
  });
}

const version = process.version.slice(1);
const answers = {};
for (const [name, ask] of [["fetch", askByFetch], ["node:http", askByHttp]]) {
  const found = (answers[`${name} ${version}`] = []);
  for (const asked of cases) {
    try {
      found.push(await ask(asked));
    } catch (error) {
      found.push({ status: 0, body: "", error: String(error) });
    }
  }
}
console.log(JSON.stringify(answers));
