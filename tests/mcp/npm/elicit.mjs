// The official clients in TypeScript: calls a tool, and answers each form that it is shown. Prints forms and result.
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
const result = await client.callTool(JSON.parse(call));
await client.close();
console.log(JSON.stringify({ forms, result }));
