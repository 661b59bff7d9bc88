"""The console, with which users observe and control a cluster in a browser. `fairlead console` starts the console.

The console is a web application on the SDK: FastAPI renders Jinja2 templates on the server, htmx refreshes parts of a
page, uPlot draws plots. The console depends on `fairlead` and the types of its answers, but not on the broker. The
console stores nothing: all data comes from the cluster, and only the rates of the last hour are kept in memory.

Conventions of the parts:

- **One module per page**: `pages/<page>.py` has `router` with the addresses of the page, and is listed in
  `pages/__init__.py`. Templates of the page are in `templates/<page>/`. Pages do not import each other.
- **`page.page()` renders a page**, with the navigation, the state of the cluster and the security headers of the
  answer. A page gets its data from `access.Access`, which is the cluster as the caller's identity sees it: `admin` for
  calls, `observer` for the newest picture of the cluster and the history of rates. `access.connection` contains the
  arguments with which a page opens a Producer or a Consumer for that identity.
- **Reading needs no script.** Every page is complete when the server sends it, and every address can be bookmarked:
  search, order and position are query parameters. Scripts only refresh, draw and convert times.
- **A page refreshes itself** with `page(..., refresh_seconds=10)`: `static/console.js` requests the page again while
  the page is visible and none of its forms is in use, and htmx updates the differences in `<main>`.
- **A change is a POST** of a form that contains `{{ csrf() }}`, takes `changes.Change` as a dependency, and answers
  with `changes.done()`, a redirect to a page that shows the result and the command that makes the same change. Every
  form shows this command with the macro `command`.
- **The browser executes no inline script and applies no inline style** (`security_headers.py`): templates have neither
  `style` nor `on...` attributes. Lengths in pictures are attributes of SVG. Data for scripts is in `data-` attributes.
- **Values from the cluster are hostile.** Templates escape everything. `|safe` is not used, except for macros.
- **Numbers** are written with `number`, `size`, `duration` and `moment` of `templates/parts/figures.html`, which show a
  short text, and the exact value on hover.
- **Errors of the SDK are not caught by the pages**: `error_pages.py` turns each error into a page that shows the
  problem, the next step and a link to the problem's reference page.
"""
