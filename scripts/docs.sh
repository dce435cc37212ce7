#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the pages of docs/ as a book in target/book/html. mdBook requires all pages below one directory,
# so this makes a copy in which the root pages that docs/SUMMARY.md names are moved below `project/`
# and links are adjusted. `docs.sh pages FOLDER` only makes the copy.
set -eu
cd "$(dirname "$0")/.."
version=0.5.4
tools=$PWD/target/tools/mdbook
mdbook=$tools/bin/mdbook
book=$PWD/target/book
pages=$book/pages
only=
[ "${1:-}" != pages ] || only=$2 pages=$2

# Makes links to files outside docs/ point to their copies; $1 is the relative path from the page to docs/.
outwards() {
    sed -E -e "s#\]\(\.\./${1:+\.\./}([A-Za-z])#](${1}project/\1#g" \
        -e 's#\]\(((\.\./)?project/[^)]*/)README\.md#](\1about.md#g' # mdBook calls a README index.html
}

# Adjusts the links of a copied page, which moved from the root to `project/`; $1 is the path up to it.
homewards() {
    sed -E "s#\]\((\.\./)*docs/#](${1}#g"
}

if [ -z "$only" ] && [ "$("$mdbook" --version 2>/dev/null)" != "mdbook v$version" ]; then
    echo "docs: building mdBook $version into target/tools/mdbook; this takes some minutes, once"
    cargo install mdbook --version "$version" --locked --no-default-features --features search \
        --root "$tools" --target-dir "$tools/build" --quiet
    rm -rf "$tools/build"
fi

[ -n "$only" ] || rm -rf "$pages"
mkdir -p "$pages/project"
cp -r docs/. "$pages/"
for page in docs/*.md; do
    outwards '' <"$page" >"$pages/${page#docs/}"
done
for page in docs/*/*.md; do
    outwards '../' <"$page" >"$pages/${page#docs/}"
done
# Copies the files outside docs/ to which pages link.
grep -ohE '\]\((\.\./)+[A-Za-z][^)#]*' docs/*.md docs/*/*.md | sed -E 's#^\]\((\.\./)+##' | sort -u |
    while read -r path; do
        [ -f "$path" ] || continue # a link from docs/howto to docs/ itself
        mkdir -p "$pages/project/$(dirname "$path")"
        up=$(dirname "project/$path" | sed -E 's#[^/]+#..#g')/
        case $path in
        */README.md) homewards "$up" <"$path" >"$pages/project/$(dirname "$path")/about.md" ;;
        *.md) homewards "$up" <"$path" >"$pages/project/$path" ;;
        *) cp "$path" "$pages/project/$path" ;;
        esac
    done
# The picture is inlined into its page, so that it follows the book's theme.
awk '
    /^!\[[^]]*\]\(overview\.svg\)$/ { while ((getline line < "docs/overview.svg") > 0) print line; next }
    { print }
' "$pages/introduction.md" >"$pages/introduction.md.new"
mv "$pages/introduction.md.new" "$pages/introduction.md"

[ -z "$only" ] || exit 0
# Lists of test names in tables are collapsed, so that tables are not wider than the page.
for page in compatibility threat-model nri-differences; do
    sed -i -E '/^\|/s#((`[a-z0-9]+(_[a-z0-9]+){4,}`)(, )?)+#<details><summary>tests</summary>&</details>#g' "$pages/$page.md"
done
# A long key may wrap after a dot or an underscore.
awk '
    /^\| `[a-z]/ {
        key = $0; sub(/` \|.*/, "`", key); rest = substr($0, length(key) + 1)
        sub(/^\| `/, "", key); sub(/`$/, "", key); gsub(/[*_]/, "\\\\&", key); gsub(/[._]/, "&<wbr>", key)
        $0 = "| <code>" key "</code>" rest
    }
    { print }
' "$pages/config.md" >"$pages/config.md.new"
mv "$pages/config.md.new" "$pages/config.md"
rm -rf "$book/html"
repository=$(sh scripts/address.sh repository)
if [ -n "$repository" ]; then
    export MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL="$repository"
    export MDBOOK_OUTPUT__HTML__EDIT_URL_TEMPLATE="$repository/edit/main/docs/{path}"
else
    echo "docs: the book has no edit links: Cargo.toml names no repository"
fi
"$mdbook" build "$pages" --dest-dir "$book/html"
# The "edit" links of copies below project/ lead to the original files.
[ -z "$repository" ] || find "$book/html" -name '*.html' -exec sed -i -E \
    -e 's#/edit/main/docs/(\./)?project/#/edit/main/#g' -e 's#(/edit/main/[^"]*)/about\.md#\1/README.md#g' {} +
if command -v python3 >/dev/null; then
    python3 scripts/docs_links.py "$book/html"
else
    echo "docs: the links of the book were not checked: python3 is missing"
fi
echo "docs: target/book/html/index.html"
