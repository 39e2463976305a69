package supabase_test

import (
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
