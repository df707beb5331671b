'use strict';
const at = (id) => document.getElementById(id);
const made = (tag, text, parent) => {
  const one = document.createElement(tag);
  if (text !== null) one.textContent = text;
  if (parent) parent.append(one);
  return one;
};
const base = location.pathname.replace(/\/(docs)?\/?$/, '');
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
      out.textContent = answer.status + ' ' + answer.statusText + '\n';
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
