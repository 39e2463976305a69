package hook

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShellTextsAreReadAsCommands(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"ls -la":                                   {"ls -la"},
		`echo "git commit"`:                        {"echo git commit"},
		`echo 'a; git commit'`:                     {"echo a; git commit"},
		"a && b || c; d | e & f":                   {"a", "b", "c", "d", "e", "f"},
		"a\nb # c; d\ne":                           {"a", "b", "e"},
		"a \\\n  b":                                {"a b"},
		`sh -c "a 'b c'; d"`:                       {"a b c", "d"},
		`bash -lc 'cd x && a'`:                     {"x: a"},
		"cd x && a; cd y; b; cd /z; c":             {"x: a", "x/y: b", "/z: c"},
		"(cd x && a); b":                           {"x: a", "b"},
		"x=$(a b) c":                               {"a b", "c"},
		"echo \"now $(a `b`)\"":                    {"b", "a *", "echo now *"},
		"A=1 B='2 3' env -u C -i D=4 sudo -u x a":  {"a"},
		"nohup timeout -k 5 60 nice -n 3 a b":      {"a b"},
		"if a; then b; else c; fi":                 {"a", "b", "c"},
		"! a":                                      {"a"},
		"{ a; }":                                   {"a"},
		"/usr/bin/a 2>&1 >/dev/null | b":           {"a", "b"},
		"a > f 2> g &> h >> i":                     {"a > f > g > h > i"},
		"a <<'EOF'\ngit commit\nEOF\nb":            {"a < git commit", "b"},
		"a <<-EOF && c\n\tgit $(commit)\n\tEOF\nb": {"a < git $(commit)", "c", "b"},
		"bash <<EOF\na\nEOF":                       {"bash < a", "a"},
		"a <<< 'b; c'":                             {"a"},
		"diff <(a) <(b)":                           {"a", "b", "diff"},
		`git commit -m "$(cat <<'EOF'` + "\nIt's done; git push\nEOF\n" + `)"`: {"cat < It's done; git push", "git commit -m *"},
		"eval 'a b' c":                     {"a b c"},
		"echo $((1 + 2)) ${x:-y} $'a\\'b'": {"echo * * a'b"},
		"uv run pytest -q":                 {"pytest -q"},
		"npx --yes jest a":                 {"jest a"},
		"command -v git":                   {"command -v git"},
		"":                                 {},
		`"`:                                {},
		"$(":                               {"*"},
		"a 'b":                             {"a b"},
	} {
		got := []string{}
		for _, c := range parseShell(text) {
			line := strings.Join(c.words, " ")
			if c.dir != "" {
				line = c.dir + ": " + line
			}
			for _, f := range c.writes {
				line += " > " + f
			}
			if c.stdin != "" {
				line += " < " + strings.TrimSpace(c.stdin)
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestWhoseEndIsTheEndOfTheText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a": "a", "a;": "a", "a\n": "a", "a && b": "a b", "a &&\nb": "a b", "a; b": "b", "a || b": "b", "a | b": "b", "a & b": "b", "a\nb": "b",
		"(a; b) && c": "b c", "(a && b) | c": "c", "x=$(a) b": "b", "sh -c 'a; b'": "b", "sh -c 'a && b' | c": "c", "a &": "", "a || true": "true",
	} {
		var got []string
		for _, c := range parseShell(text) {
			if c.alone {
				got = append(got, c.words[0])
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestWhichCommandsCommit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"git commit -m x", "git -C d commit", "git -c user.name=x --no-pager commit -a", "cd x && git commit", `sh -c "git commit"`, "echo $(git commit)",
		"env -u A git commit", "GIT_DIR=x git commit", "git add . && git commit -m 'y'", "/usr/bin/git commit", "if true; then git commit; fi",
		"jj commit", "jj describe -m x", "jj -R d new", "sudo git commit", "echo `git commit`", "a | xargs git commit",
	} {
		if !anyCommits(text) {
			t.Errorf("%s: no commit was seen", text)
		}
	}
	for _, text := range []string{
		`echo "git commit"`, "git commit-graph write", "git push", "git log --grep commit", "# git commit", "echo git commit", "git -c commit status", "jj log", "jj git push",
		"grep 'git commit' f", "cat <<EOF\ngit commit\nEOF", "git config alias.commit x", "mygit commit",
	} {
		if anyCommits(text) {
			t.Errorf("%s: a commit was seen", text)
		}
	}
}

func anyCommits(text string) bool {
	for _, c := range parseShell(text) {
		if c.commits() {
			return true
		}
	}
	return false
}

func TestWhichCommandsMayChangeFiles(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"sed -i s/a/b/ f", "rm f", "echo a > f", "git checkout f", "npm install", "find . -delete", "make", "go generate ./...", "a | tee f"} {
		if !changesFiles(text) {
			t.Errorf("%s: no change", text)
		}
	}
	for _, text := range []string{"ls", "cat a b", "sed -n 1,3p f", "git status", "git diff | head", "grep a b 2>/dev/null", "git add . && git commit -m x", "cd x", ""} {
		if changesFiles(text) {
			t.Errorf("%s: a change", text)
		}
	}
}

func changesFiles(text string) bool {
	for _, c := range parseShell(text) {
		if c.changes() {
			return true
		}
	}
	return false
}

func TestWhichFilesACommandShows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"cat a b": "a b", "cd x; head -n 20 a": "x/a", "tail -20 a": "a", "sed -n '1,20p' a": "a", "sed -i s/a/b/ a": "", "ls a": "", "cat < a": "", "nl -ba /x/y": "/x/y", "cat -": "", "sed -n 3p": "",
	} {
		var got []string
		for _, c := range parseShell(text) {
			got = append(got, c.shows()...)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Whatever the text is, reading it ends.
func FuzzShell(f *testing.F) {
	for _, text := range []string{"a && b", "$($($(", "<<<<", "a <<E\nE\n", "`\"$(", "((((", "'", "\\", "sh -c 'sh -c \"sh -c a\"'", "eval eval eval", strings.Repeat("(", 1000), strings.Repeat("a <<E ", 1000)} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) { parseShell(text) })
}
