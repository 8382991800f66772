// How many tokens the text of stdin is for a model of today.
import { readFileSync } from "node:fs";
import { countTokens } from "gpt-tokenizer/encoding/o200k_base";

console.log(countTokens(readFileSync(0, "utf8")));
