// The official clients in TypeScript: bootstraps, calls a tool, answers each form that it is shown, reads the inbox and
// acks it. Prints what it was told.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OldTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [era, address, token, call, answer] = process.argv.slice(2);
const options = { requestInit: { headers: { Authorization: `Bearer ${token}` } } };
const info = { name: "elicits", version: "1" };
const capabilities = { elicitation: { form: {} } };
const forms = [];
const show = async ({ params }) => {
  forms.push(params);
  return JSON.parse(answer);
};
let client;
if (era === "legacy") {
  client = new OldClient(info, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, show);
  await client.connect(new OldTransport(new URL(address), options));
} else {
  client = new Client(info, { capabilities, versionNegotiation: { mode: { pin: era } } });
  client.setRequestHandler("elicitation/create", show);
  await client.connect(new StreamableHTTPClientTransport(new URL(address), options));
}
const tool = (name, given) => client.callTool({ name, arguments: given });
const start = await tool("memory_bootstrap", {});
const result = await client.callTool(JSON.parse(call));
const inbox = await tool("read_inbox", { wait: 30 });
const acked = await tool("ack_through", { through: inbox.structuredContent.entries.at(-1).token });
await client.close();
console.log(JSON.stringify({ forms, result, start, acked }));
