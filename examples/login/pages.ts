/** The page of somebody who is logged in. */
export function homePage({ user, visits, worker }: { user: string; visits: number; worker: number }): string {
  return page(
    `Hello, ${user}`,
    html`<p>You are logged in as <strong id="user">${user}</strong>.</p>
      <p>You have seen this page <strong id="visits">${visits}</strong> ${visits === 1 ? 'time' : 'times'}.</p>
      <form method="post" action="/logout"><button>Log out</button></form>`,
    worker,
  );
}

/** The form to log in with; `failed` if that was tried. */
export function loginPage({ worker, failed = false }: { worker: number; failed?: boolean }): string {
  return page(
    'Log in',
    html`${failed ? html`<p class="failed" role="alert">That name and password do not match.</p>` : ''}
      <form method="post" action="/login">
        <label>Name <input name="name" autocomplete="username" required autofocus /></label>
        <label>Password <input name="password" type="password" autocomplete="current-password" required /></label>
        <button>Log in</button>
      </form>`,
    worker,
  );
}

function page(title: string, content: Html, worker: number): string {
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width" />
        <title>${title}</title>
        <link rel="stylesheet" href="/style.css" />
      </head>
      <body>
        <main>
          <h1>${title}</h1>
          ${content}
        </main>
        <footer>Answered by worker <span id="worker">${worker}</span></footer>
      </body>
    </html> `.text;
}

/** Text that is HTML already. */
class Html {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

/** A template of HTML: what is put in is escaped, unless it is HTML itself. */
function html(parts: TemplateStringsArray, ...values: (string | number | Html)[]): Html {
  return new Html(
    String.raw({ raw: parts }, ...values.map((value) => (value instanceof Html ? value.text : escaped(value)))),
  );
}

const entities: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

function escaped(value: string | number): string {
  return String(value).replace(/[&<>"']/g, (character) => entities[character] ?? character);
}
