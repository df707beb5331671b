"""The page that a gateway serves: it reads the OpenAPI description and lets you call methods.

One file without anything from elsewhere. What comes from the cluster enters the page as text, never
as HTML; the policy forbids all other scripts and all other hosts.
"""

from __future__ import annotations

import base64
import hashlib

_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}details{border:1px solid #8886;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}summary b{font-family:ui-monospace,monospace}textarea,input{font:13px ui-monospace,monospace;width:100%;box-sizing:border-box}
pre{background:#8882;padding:.6rem;overflow:auto;max-height:24rem;white-space:pre-wrap}label{display:block;margin:.4rem 0}
button{font:inherit;padding:.2rem .9rem}.bad{color:#c33}
"""

_SCRIPT = """
'use strict';
const at = (id) => document.getElementById(id);
const made = (tag, text, parent) => {
  const one = document.createElement(tag);
  if (text !== null) one.textContent = text;
  if (parent) parent.append(one);
  return one;
};
const base = location.pathname.replace(/\\/(docs)?\\/?$/, '');
const headers = () => (at('token').value ? {Authorization: 'Bearer ' + at('token').value} : {});
let running = null;
const example = (schema, all, depth) => {
  if (!schema || depth > 6) return null;
  if (schema.default !== undefined) return schema.default;
  if (schema.$ref) return example(all[schema.$ref.split('/').pop()], all, depth + 1);
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return example(schema.anyOf[0], all, depth + 1);
  if (schema.prefixItems) return schema.prefixItems.map((one) => example(one, all, depth + 1));
  if (schema.type === 'object') {
    const found = {};
    for (const [name, one] of Object.entries(schema.properties || {})) found[name] = example(one, all, depth + 1);
    return found;
  }
  return {integer: 0, number: 0, string: '', boolean: false, array: []}[schema.type] ?? null;
};
const show = (path, one, all) => {
  const box = made('details', null, at('methods'));
  const line = made('summary', null, box);
  made('b', one.operationId, line);
  line.append(' ' + (one.summary || ''));
  if (one.description) made('p', one.description, box);
  const schema = one.requestBody.content['application/json'].schema;
  const body = made('textarea', null, made('label', 'Arguments', box));
  body.rows = 4;
  body.value = JSON.stringify(example(schema, all, 0), null, 1);
  let key = null;
  if (!one['x-stream']) key = made('input', null, made('label', 'Idempotency-Key (may be empty)', box));
  const timeout = made('input', null, made('label', 'Understudy-Timeout in seconds (may be empty)', box));
  const call = made('button', 'Call', box);
  const out = made('pre', '', box);
  const more = made('details', null, box);
  made('summary', 'Schema', more);
  made('pre', JSON.stringify({parameters: schema, answers: one.responses['200'].content}, null, 1), more);
  call.onclick = async () => {
    if (running) running.abort();
    running = new AbortController();
    const sent = {...headers(), 'Content-Type': 'application/json'};
    if (key && key.value) sent['Idempotency-Key'] = key.value;
    if (timeout.value) sent['Understudy-Timeout'] = timeout.value;
    out.textContent = '...';
    try {
      const answer = await fetch(base + path, {method: 'POST', headers: sent, body: body.value, signal: running.signal});
      out.textContent = answer.status + ' ' + answer.statusText + '\\n';
      const reader = answer.body.getReader(), text = new TextDecoder();
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        out.textContent = (out.textContent + text.decode(value, {stream: true})).slice(-100000);
      }
    } catch (error) { out.textContent += String(error); }
  };
};
const load = async () => {
  at('methods').replaceChildren();
  at('state').textContent = 'Loading ...';
  try {
    const answer = await fetch(base + '/v1/openapi.json', {headers: headers()});
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail);
    const paths = Object.entries(found.paths);
    at('state').textContent = paths.length ? '' :
      'No method may be called yet: mark one with @method(http=True), or start the gateway with --allow.';
    for (const [path, one] of paths) show(path, one.post, found.components.schemas);
  } catch (error) { at('state').textContent = String(error); }
};
at('load').onclick = load;
load();
"""


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Actors of this cluster</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Actors of this cluster</h1>
<p>Call their methods. The description is at <a href="v1/openapi.json">v1/openapi.json</a>.</p>
<label>Token, where the gateway wants one
<input id="token" type="password" autocomplete="off"></label>
<button id="load">Load</button>
<p id="state" class="bad"></p>
<div id="methods"></div>
<script>{_SCRIPT}</script>
</body>
</html>
"""

PAGE_POLICY = (
    f"default-src 'none'; style-src {_hashed(_STYLE)}; script-src {_hashed(_SCRIPT)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: what the page itself has, and nothing else."""
